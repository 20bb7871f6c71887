"""What is loaded on first use, and what has moved: old names work for a release, and warn."""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType, new_class
from typing import Any, Protocol, runtime_checkable

MOVED = {  # old name → new name, the longest first: a package is moved with all that is in it
    "fedstale.experiments.contest": "fedstale.lab.arena.contest",
    "fedstale.experiments.estimate": "fedstale.lab.arena.contest",
    "fedstale.experiments.suite": "fedstale.lab.arena.suite",
    "fedstale.memory.codings": "fedstale.memory.rows",
    "fedstale.memory.update": "fedstale.memory.memory",
    "fedstale.memory.ram": "fedstale.memory.rows",
    "fedstale.engines.quadratic": "fedstale.tasks.quadratic",
    "fedstale.core.ranges": "fedstale.core.parts",
    "fedstale.cli.progress": "fedstale.view.terminal.runs",
    "fedstale.cli.console": "fedstale.view.terminal.console",
    "fedstale.cli.results": "fedstale.view.terminal.runs",
    "fedstale.comparisons": "fedstale.lab.compare",
    "fedstale.estimators": "fedstale.participation.estimators",
    "fedstale.evaluation": "fedstale.core.abilities",
    "fedstale.experiments": "fedstale.lab",
    "fedstale.federation": "fedstale.flower.federation",
    "fedstale.schedules": "fedstale.core.schedules",
    "fedstale.trackers": "fedstale.view.trackers",
    "fedstale.kernels": "fedstale.engines.kernels",
    "fedstale.servers": "fedstale.simulate.servers",
    "fedstale.advise": "fedstale.lab.advise",
    "fedstale.papers": "fedstale.lab.papers",
    "fedstale.report": "fedstale.view.page",
    "fedstale.arena": "fedstale.lab.arena",
    "fedstale.clock": "fedstale.participation.clock",
    "fedstale.plots": "fedstale.view.plots",
    "fedstale.runs": "fedstale.lab.runs",
    "fedstale.rng": "fedstale.core.rng",
    "fedstale.ui": "fedstale.view.live",
}
ABILITIES = {  # protocol that is gone → what it asked a strategy for
    "BindsTask": "bind", "DividesByProbability": "inverse_weighting", "Drifts": "drift", "Forgets": "forget",
    "HasPoint": "point", "NeedsLastGradient": "needs_last_gradient", "Selects": "select",
    "StartsClients": "starts", "Wraps": "strategy",
}  # fmt: skip

ROOMS = (  # where the names are that were all in `fedstale` itself
    "strategies", "participation", "channels", "estimators", "servers", "schedules", "memory", "defence", "core",
    "engines", "fed_cis", "registry", "lab", "tasks",
)  # fmt: skip


class OldNames(MetaPathFinder, Loader):
    """Finds a moved module under its old name and gives the module itself, not a copy."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if new_name(name) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = new_name(spec.name)
        assert new is not None
        told = f"{spec.name} has moved to {new}; the old name goes with the next release"
        warnings.warn(told, FutureWarning, stacklevel=2)
        module = import_module(new)
        spec.loader_state = module.__spec__
        parent, _, name = spec.name.rpartition(".")
        function = vars(sys.modules[parent]).get(name)
        if isinstance(function, FunctionType):  # as fs.runs: it stays callable
            module.__class__ = type("Module", (ModuleType,), {"__call__": staticmethod(function)})
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back: it was executed under its new name."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def new_name(name: str) -> str | None:
    """The name that a moved module has now; None if it has not moved."""
    for old, new in MOVED.items():
        if name == old or name.startswith(old + "."):
            return new + name[len(old) :]
    return None


def on_first_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: it loads these names, each "module:Name" or a module, when they are used."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, _, attribute = homes[name].partition(":")
        module = import_module(home)
        vars(sys.modules[package])[name] = found = vars(module)[attribute] if attribute else module
        return found

    return load


def old_name(name: str) -> Any:
    """What was `fs.NAME` before it was in a room alone, or a protocol that strategies had before their hooks."""
    if f"fedstale.{name}" in MOVED:
        return import_module(f"fedstale.{name}")
    homes = {room: new_name(f"fedstale.{room}") or f"fedstale.{room}" for room in ROOMS}
    rooms = {room: import_module(home) for room, home in homes.items() if not name.startswith("_")}
    home = next((room for room, module in rooms.items() if name in module.__all__), None)
    if home is None and name not in ABILITIES:
        raise AttributeError(f"module 'fedstale' has no attribute {name!r}")
    gone = "goes with the next release"
    told = f"is now fs.{home}.{name}; the old name {gone}" if home else f"{gone}; see fs.core.hooks_of(strategy)"
    warnings.warn(f"fs.{name} {told}", FutureWarning, stacklevel=3)
    if home is not None:
        return getattr(rooms[home], name)
    member = ABILITIES[name]
    return runtime_checkable(new_class(name, (Protocol,), exec_body=lambda members: members.update({member: None})))


def keep_old_names() -> None:
    """Answer imports of old names, before others find a moved package's files under them."""
    if not any(isinstance(finder, OldNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldNames())
