"""Engines: how local training runs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedstale.core import Engine, Local, Task, known, require
from fedstale.core.moved import on_first_use
from fedstale.engines.serial import Serial
from fedstale.tasks.quadratic import BatchedQuadratic, Quadratic

ENGINES = {
    "serial": "one client after the other: the reference",
    "batched": "clients and runs side by side: small models, and CNNs with numba",
    "pool": "one process per core: large models",
    "auto": "batched where that is fast, else serial or pool, found by a short trial: the default",
    "ray": "one actor per CPU or GPU of a Ray cluster: more than one machine",
}

MODULES = {  # loaded when asked for: all but the first need torch, ray or processes
    "serial": ("serial", "Serial"),
    "batched": ("batched.engine", "Batched"),
    "pool": ("processes.pool", "Pool"),
    "auto": ("auto", "Auto"),
    "ray": ("ray.engine", "Ray"),
}

__all__ = ["ENGINES", "Auto", "Batched", "Pool", "Ray", "Serial", "make"]

if TYPE_CHECKING:
    from fedstale.engines.auto import Auto
    from fedstale.engines.batched.engine import Batched
    from fedstale.engines.processes.pool import Pool
    from fedstale.engines.ray.engine import Ray
else:
    __getattr__ = on_first_use(__name__, {kind: f"{__name__}.{home}:{kind}" for home, kind in MODULES.values()})


def make(name: str | dict[str, Any], task: Task, local: Local) -> Engine:
    """The engine of that name for a task. Its optional abilities are StepsTogether, ExplainsItself and Closes."""
    chosen = known(name, ENGINES, "engine")
    require(isinstance(task, Task), f"an engine needs a task, got {type(task).__name__}")
    require(isinstance(local, Local), f"local must be Local(lr=…), got {local!r}")
    if chosen in ("batched", "auto") and type(task) is Quadratic:  # one derived from it may have other gradients
        return BatchedQuadratic(task, local, Serial(task, local))
    module, kind = MODULES[chosen]
    made: Engine = vars(import_module(f"fedstale.engines.{module}"))[kind](task, local)
    return made
