"""The package is light to import, and its imports go one way."""

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fedstale

ROOT = Path(fedstale.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
HEAVY = ("torch", "flwr", "ray", "matplotlib", "pydantic", "typer", "rich", "plotly", "sklearn", "numba", "pandas")

BASE = {"core", "rng"}
PARTS = BASE | {"strategies", "participation", "estimators", "channels", "schedules", "servers", "memory"}
ALLOWED = {  # what a room may import besides itself; every room is here
    "core": set(),
    "rng": set(),
    "kernels": set(),
    "theory": BASE,
    "memory": BASE | {"kernels"},
    "strategies": BASE | {"memory"},
    "participation": BASE,
    "estimators": BASE,
    "channels": BASE,
    "servers": BASE,
    "schedules": BASE,
    "data": BASE,
    "tasks": BASE | {"data", "kernels"},
    "fed_cis": BASE | {"data", "tasks"},
    "engines": BASE | {"tasks", "data", "kernels"},
    "evaluation": BASE,
    "defence": BASE,
    "simulate": BASE | {"channels", "estimators", "servers", "defence"},  # the defaults
    "testing": BASE | {"engines", "evaluation"},
    "registry": PARTS | {"engines", "tasks", "data", "fed_cis"},
    "runs": BASE,
    "plots": BASE | {"runs"},
    "trackers": BASE | {"runs"},
    "report": BASE | {"runs", "plots"},
    "ui": BASE | {"runs", "plots", "report", "arena"},
    "arena": BASE | {"runs", "plots"},
    "experiments": PARTS
    | {"registry", "evaluation", "simulate", "runs", "engines", "tasks", "data", "fed_cis"}
    | {"defence"},
    "papers": BASE | {"experiments", "simulate", "runs", "plots", "engines"},
    "advise": BASE | {"experiments", "registry", "runs", "participation", "theory", "engines", "memory"},
    "federation": BASE | {"defence", "memory", "registry", "simulate", "runs", "experiments", "engines", "tasks"},
    "flower": PARTS | {"defence", "federation", "registry", "simulate", "runs"},
    "cli": {"core", "simulate", "registry", "experiments", "papers", "plots", "report", "advise", "federation"}
    | {"runs", "theory", "trackers", "ui", "arena"},
    "comparisons": {
        "core",
        "defence",
        "simulate",
        "registry",
        "engines",
        "experiments",
        "runs",
        "tasks",
        "cli",
    },
    "__main__": {"cli"},
}
HOMES = {
    "torch": {"tasks", "engines", "fed_cis"},
    "flwr": {"federation", "flower"},
    "ray": {"engines"},
    "matplotlib": {"plots", "papers"},
    "plotly": {"report"},
    "starlette": {"ui"},
    "uvicorn": {"ui", "federation"},  # Flower's link is served by it
    "tensorboardX": {"trackers"},
    "wandb": {"trackers"},
    "mlflow": {"trackers"},
}


def imported(path: Path) -> Iterator[str]:
    """The full names of all that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}, line {node.lineno}: imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_a_run_loads_no_other_command() -> None:
    """Reading what `fedstale run` does takes the rooms that it loads, and no more."""
    code = "import sys; sys.argv[1:] = ['run', 'demo', '-c', 'rounds=1', '--seeds', '1', '-o', 'runs']\n"
    code += "import fedstale.cli.app as cli\ntry: cli.main()\nexcept SystemExit: pass\n"
    code += "print(*{name.split('.')[1] for name in sys.modules if name.startswith('fedstale.')}, file=sys.stderr)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True, check=True
        )
    rooms = {*done.stderr.split("\n")[-2].split()}
    assert "experiments" in rooms
    assert not rooms & {"papers", "report", "ui", "advise", "federation", "flower"}


def layer(path: Path) -> str:
    """rng for rng.py, strategies for strategies/fedavg.py, nothing for the package's own __init__."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def layers_imported(path: Path) -> set[str]:
    names = (name.split(".") for name in imported(path))
    return {parts[1] for parts in names if parts[0] == "fedstale" and len(parts) > 1} - {layer(path)}


inside = pytest.mark.parametrize(
    "path", [p for p in FILES if p != ROOT / "__init__.py"], ids=lambda p: str(p.relative_to(ROOT))
)


def test_the_package_imports_numpy_only() -> None:
    command = f"import sys, fedstale; print([m for m in {HEAVY} if m in sys.modules], 'numpy' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    done = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[] True"


@inside
def test_a_layer_imports_only_what_is_below_it(path: Path) -> None:
    above = layers_imported(path) - ALLOWED[layer(path)]
    assert not above, f"{path.name} imports {above}; {layer(path)} may import {ALLOWED[layer(path)]}"


def test_layers_do_not_import_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in FILES:
        if path != ROOT / "__init__.py":
            graph.setdefault(layer(path), set()).update(layers_imported(path))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"layers import each other: {' ← '.join(error.args[1])}")


@inside
def test_every_layer_exists(path: Path) -> None:
    """`from fedstale import FedAvg` inside the package would load all of it."""
    known = {layer(p) for p in FILES}
    assert layers_imported(path) <= known, f"{path.name} imports {layers_imported(path) - known} from the package"


@pytest.mark.parametrize("path", sorted((ROOT / "strategies").glob("[!_]*.py")), ids=lambda p: p.stem)
def test_strategies_do_not_import_each_other(path: Path) -> None:
    assert not [name for name in imported(path) if name.startswith("fedstale.strategies")]


@inside
def test_heavy_libraries_stay_at_home(path: Path) -> None:
    for name in imported(path):
        homes = HOMES.get(name.split(".")[0])
        assert homes is None or layer(path) in homes, f"{path.name} imports {name}, which belongs in {homes}"


def test_ray_is_in_one_file() -> None:
    assert len([p for p in FILES if any(name.split(".")[0] == "ray" for name in imported(p))]) <= 1


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_has_a_name_of_its_own(path: Path) -> None:
    empty = {"utils", "util", "common", "helpers", "helper", "manager", "factory", "misc"}
    words = {word for part in path.relative_to(ROOT).with_suffix("").parts for word in part.split("_")}
    assert not words & empty, f"{path}: say what is in it"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_abilities_are_protocols_and_not_probed_by_name(path: Path) -> None:
    system = {"sched_getaffinity", "memfd_create", "MADV_HUGEPAGE", "MAP_NORESERVE", "_fields", "_is_protocol"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr")
        ):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
            assert name in {"", *system}, f"{path.name}, line {node.lineno}: ask for {name!r} by a protocol"
