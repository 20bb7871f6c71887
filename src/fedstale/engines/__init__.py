"""How local training runs."""

from typing import Any

from fedstale.core import Engine, Local, Task, known
from fedstale.engines.serial import Serial

ENGINES = {"serial": "one client after the other: the reference"}

__all__ = ["ENGINES", "Serial", "make"]


def make(name: str | dict[str, Any], task: Task, local: Local) -> Engine:
    """The engine of that name for a task."""
    known(name, ENGINES, "engine")
    return Serial(task, local)
