"""How local training runs."""

from typing import Any

from fedstale.core import Engine, Local, Task, known
from fedstale.engines.quadratics import BatchedQuadratic
from fedstale.engines.serial import Serial
from fedstale.tasks.quadratic import Quadratic

ENGINES = {
    "serial": "one client after the other: the reference",
    "batched": "clients and runs side by side: small models",
}

__all__ = ["ENGINES", "Serial", "make"]


def make(name: str | dict[str, Any], task: Task, local: Local) -> Engine:
    """The engine of that name for a task; torch is imported only by those that need it."""
    match known(name, ENGINES, "engine"):
        case "batched" if isinstance(task, Quadratic):
            return BatchedQuadratic(task, local)
        case "batched":
            from fedstale.engines.batched import Batched

            return Batched(task, local)  # type: ignore[arg-type]
        case _:
            return Serial(task, local)
