"""The package is light to import, and its imports go one way."""

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fedstale
from fedstale.cli.app import COMMANDS

ROOT = Path(fedstale.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
HEAVY = ("torch", "flwr", "ray", "matplotlib", "pydantic", "typer", "rich", "plotly", "sklearn", "numba", "pandas")

BASE = {"core"}
PARTS = BASE | {"strategies", "participation", "participation/clock", "channels", "memory"}
PLAY = {"simulate", "registry", "engines", "tasks", "data", "fed_cis", "defence", "participation/clock", "privacy"}
ALLOWED = {  # what a room may import besides itself, from the lowest to the highest; every room is here
    "core": set(),
    "engines/kernels": set(),
    "theory": BASE,
    "memory": BASE | {"engines/kernels"},
    "strategies": BASE | {"memory"},
    "participation": BASE,
    "channels": BASE,
    "participation/clock": BASE | {"participation"},
    "data": BASE,
    "tasks": BASE | {"data", "engines/kernels"},
    "fed_cis": BASE | {"data", "tasks"},
    "engines": BASE | {"tasks", "data", "engines/kernels"},
    "defence": BASE,
    "privacy": BASE | {"memory"},
    "simulate": BASE | {"channels", "participation", "defence", "privacy", "participation/clock", "memory"},
    "testing": BASE | {"engines", "privacy"},
    "registry": PARTS | {"simulate", "engines", "tasks", "data", "fed_cis"},
    # the laboratory and the views: runs are stored below both
    "lab/runs": BASE,
    "view": set(),
    "view/plots": BASE | {"lab/runs"},
    "view/trackers": BASE | {"lab/runs"},
    "lab": PARTS | PLAY | {"lab/runs", "theory"},
    "view/terminal": BASE | {"lab", "simulate", "lab/runs", "view/plots", "view/trackers"},
    "lab/compare": BASE | PLAY | {"lab", "lab/runs", "view/terminal"},
    "lab/arena": BASE | PLAY | {"lab", "lab/runs"},
    "lab/papers": BASE | {"lab", "simulate", "lab/runs", "view/plots", "engines"},
    "lab/advise": BASE
    | {"lab", "registry", "lab/runs", "participation", "theory", "engines", "memory", "lab/arena"},
    "view/page": BASE | {"lab/runs", "view/plots", "lab/arena"},
    "view/live": BASE | {"lab/runs", "view/plots", "view/page", "lab/arena"},
    # Flower
    "flower/federation": BASE | PLAY | {"memory", "lab", "lab/runs"},
    "flower": PARTS | {"defence", "privacy", "flower/federation", "registry", "simulate", "lab", "lab/runs"},
    "cli": {
        "core",
        "simulate",
        "registry",
        "theory",
        "privacy",
        "data",
        "strategies",
        "lab",
        "lab/runs",
        "lab/papers",
        "lab/advise",
        "lab/arena",
    }
    | {"view/plots", "view/page", "view/live", "view/terminal", "view/trackers", "flower/federation"},
    "__main__": {"cli"},
}
HOMES = {
    "torch": {"tasks", "engines", "fed_cis"},
    "flwr": {"flower", "flower/federation"},
    "ray": {"engines"},
    "matplotlib": {"view/plots", "lab/papers"},
    "plotly": {"view/page"},
    "starlette": {"view/live", "flower/federation"},  # Flower's link is made with it
    "uvicorn": {"view/live", "flower/federation"},
    "tensorboardX": {"view/trackers"},
    "wandb": {"view/trackers"},
    "mlflow": {"view/trackers"},
}


@cache
def nodes(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def imported(path: Path) -> Iterator[str]:
    """The full names of all that a file imports, wherever in it."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}, line {node.lineno}: imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_a_run_loads_no_other_command() -> None:
    """Reading what `fedstale run` does takes the rooms that it loads, and no more."""
    code = "import sys; sys.argv[1:] = ['run', 'demo', '-c', 'rounds=1', '--seeds', '1', '-o', 'runs']\n"
    code += "import fedstale.cli.app as cli\ntry: cli.main()\nexcept SystemExit: pass\n"
    code += "print(*(name for name in sys.modules if name.startswith('fedstale.')), file=sys.stderr)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True, check=True
        )
    names = done.stderr.split("\n")[-2].split()
    commands = {module.partition(":")[0] for module in COMMANDS.values()}
    assert commands & {name.removeprefix("fedstale.cli.") for name in names} <= {"run"}
    rooms = {room(name) for name in names}
    assert "lab" in rooms
    assert not rooms & {"lab/papers", "lab/advise", "lab/arena", "view/page", "view/live", "flower"}


def room(name: str) -> str:
    """The room of a module: strategies for fedstale.strategies.fedavg, lab/runs for fedstale.lab.runs.store."""
    first, *rest = name.split(".")[1:]
    inner = f"{first}/{rest[0]}" if rest else first
    return inner if inner in ALLOWED else first


def home(path: Path) -> str:
    """The room of a file."""
    parts = ("fedstale", *path.relative_to(ROOT).with_suffix("").parts)
    return room(".".join(part for part in parts if part != "__init__"))


def rooms_imported(path: Path) -> set[str]:
    names = (name for name in imported(path) if name.startswith("fedstale."))
    return {room(name) for name in names} - {home(path)}


INSIDE = [path for path in FILES if path != ROOT / "__init__.py"]


def test_the_package_imports_numpy_only() -> None:
    command = f"import sys, fedstale; print([m for m in {HEAVY} if m in sys.modules], 'numpy' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    done = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[] True"


def test_a_federation_is_set_up_and_looked_at_without_flower() -> None:
    """Only what talks to it or makes keys needs Flower and what comes with it: status and backups do not."""
    names = {
        ".".join(("fedstale", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for path in (ROOT / "flower" / "federation").rglob("*.py")
    }
    talk = {
        "client.app", "client.fleet", "client.own_memory", "client.warm",
        "ops.express", "ops.keys", "ops.superlink", "protocol.grid", "protocol.messages",
        "server.app",
    }  # fmt: skip
    without = names - {f"fedstale.flower.federation.{name}" for name in talk}
    absent = ("flwr", "httpx", "uvicorn", "starlette", "cryptography", "grpc")  # wherever the test is run
    code = f"import sys, importlib; sys.modules |= dict.fromkeys({absent})\n"
    code += f"for name in {sorted(without)}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_room_imports_only_what_is_below_it_and_in_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in INSIDE:  # `from fedstale import FedAvg` inside the package would load all of it: no room FedAvg
        above = rooms_imported(path) - ALLOWED[home(path)]
        assert not above, f"{path.relative_to(ROOT)} imports {above}; {home(path)} may import {ALLOWED[home(path)]}"
        graph.setdefault(home(path), set()).update(rooms_imported(path))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"rooms import each other: {' ← '.join(error.args[1])}")


def test_the_package_has_few_rooms_at_the_top() -> None:
    rooms = {
        path.relative_to(ROOT).parts[0] for path in ROOT.rglob("*") if path.is_file() and path.suffix != ".pyc"
    }
    assert len(rooms) <= 22, sorted(rooms)


def test_strategies_do_not_import_each_other() -> None:
    for path in (ROOT / "strategies").glob("[!_]*.py"):
        assert not [name for name in imported(path) if name.startswith("fedstale.strategies")], path.name


def test_heavy_libraries_stay_at_home() -> None:
    for path in INSIDE:
        for name in imported(path):
            homes = HOMES.get(name.split(".")[0])
            assert homes is None or home(path) in homes, f"{path.name} imports {name}, which belongs in {homes}"
    assert len([p for p in FILES if any(name.split(".")[0] == "ray" for name in imported(p))]) <= 1


def test_every_module_has_a_name_of_its_own_and_no_ability_is_probed_by_name() -> None:
    empty = {"utils", "util", "common", "helpers", "helper", "manager", "factory", "misc"}
    system = {"sched_getaffinity", "memfd_create", "MADV_HUGEPAGE", "MAP_NORESERVE", "_fields", "_is_protocol"}
    system |= {"__value__", "__parameters__"}  # of a type alias, which Python 3.11 does not have
    for path in FILES:
        words = {word for part in path.relative_to(ROOT).with_suffix("").parts for word in part.split("_")}
        assert not words & empty, f"{path}: say what is in it"
        for node in nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                probes = node.func.id in ("getattr", "hasattr")
                name = node.args[1].value if probes and isinstance(node.args[1], ast.Constant) else ""
                assert name in {"", *system}, f"{path.name}, line {node.lineno}: ask for {name!r} by a protocol"
