"""How local training runs."""

from typing import Any

from fedstale.core import Engine, Local, Task, known
from fedstale.engines.quadratic import BatchedQuadratic
from fedstale.engines.serial import Serial
from fedstale.tasks.quadratic import Quadratic

ENGINES = {
    "serial": "one client after the other: the reference",
    "batched": "clients and runs side by side: small models",
    "pool": "one process per core: convolutions and other large models",
    "auto": "the fastest of these, tried for a moment",
    "ray": "one actor per CPU or GPU of a Ray cluster: more than one machine",
}

__all__ = ["ENGINES", "Serial", "make"]


def make(name: str | dict[str, Any], task: Task, local: Local) -> Engine:
    """The engine of that name for a task; torch is imported only by those that need it.

    One with a `width` profits from so many runs in step, one with a `note` says why it was chosen and
    has the `name` of what it chose, and one with a `close` has something to close.
    """
    match known(name, ENGINES, "engine"):
        case "batched" | "auto" if type(task) is Quadratic:  # one derived from it may have other gradients
            return BatchedQuadratic(task, local)
        case "batched":
            from fedstale.engines.batched.engine import Batched

            return Batched(task, local)  # type: ignore[arg-type]
        case "pool":
            from fedstale.engines.processes.pool import Pool

            return Pool(task, local)
        case "auto":
            from fedstale.engines.auto import Auto

            return Auto(task, local)
        case "ray":
            from fedstale.engines.ray.engine import Ray

            return Ray(task, local)
        case _:
            return Serial(task, local)
