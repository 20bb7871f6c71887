"""The wheel, built from the tree and installed elsewhere, is whole: `make test-wheel`."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ("src", "pyproject.toml", "README.md", "LICENSE")
LEFT_OUT = (
    "test_",
    "tests/",
    "fuzz",
    "chaos",
    "tools/",
    "workloads",
    "measure.py",
    "benchmarks",
    "contenders",
    "__pycache__",
)
pytestmark = pytest.mark.wheel


def pip(*words: object) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, words)]
    subprocess.run(command, check=True, env=environment())


def environment() -> dict[str, str]:
    """The variables of this process without those that would lead back to the checkout."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing an earlier build left in the checkout gets into it."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCE:
        place = folder / "source" / name
        place.parent.mkdir(exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
        else:
            shutil.copy(ROOT / name, place)
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, folder / "source")
    (built,) = folder.glob("fedstale-*.whl")
    return built


@pytest.fixture(scope="module")
def home(wheel: Path) -> Path:
    """An environment that has the wheel and, from this one, everything else but fedstale."""
    folder = wheel.parent / "environment"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip("--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    (site,) = folder.glob("lib/*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))  # its own .pth files are not read
    return folder


def fedstale(home: Path, *words: object) -> str:
    """What the installed command prints, in an empty folder beside the environment."""
    here = home.parent / "elsewhere"
    here.mkdir(exist_ok=True)
    command = [home / "bin" / "fedstale", *map(str, words)]
    done = subprocess.run(command, cwd=here, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_holds_the_data_and_no_test_or_benchmark(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tree = {
        str(p.relative_to(ROOT / "src")) for p in (ROOT / "src/fedstale").rglob("*") if "__pycache__" not in p.parts
    }
    wanted = {name for name in tree if name.endswith((".toml", ".npz", ".css", ".js", ".html", "py.typed", ".py"))}
    assert wanted - {*names} == set()
    assert {"fedstale/lab/experiments/demo.toml", "fedstale/lab/papers/fedstale-fig1.toml"} < wanted
    ours = [name for name in names if "/templates/" not in name]  # those of `fedstale new` have tests of their own
    assert [name for name in ours if any(part in name for part in LEFT_OUT)] == []
    assert "fedstale/cli/templates/parts/my_parts/__init__.py.txt" in names


def test_a_packaged_experiment_runs_by_its_name(home: Path) -> None:
    assert str(home) in fedstale_file(home)
    assert "MIFA" in fedstale(home, "run", "demo", "-c", "rounds=3", "--seeds", "1")
    assert "finished" in fedstale(home, "list", "runs")
    pytest.importorskip("plotly", reason="the report needs the extra `report`")
    assert "6 runs in 1 setting" in fedstale(home, "report", "-o", "page.html")


def fedstale_file(home: Path) -> str:
    code = "import fedstale; print(fedstale.__file__)"
    command = [home / "bin" / "python", "-c", code]
    return subprocess.run(command, env=environment(), cwd=home, capture_output=True, text=True, check=True).stdout


def test_a_figure_is_reproduced(home: Path) -> None:
    assert "fedstale-fig1" in fedstale(home, "reproduce", "--list")
    fedstale(home, "reproduce", "fedstale-fig1", "--scale", "smoke", "--jobs", "1", "-o", "figure")
    assert (home.parent / "elsewhere/figure/fedstale-fig1-smoke.png").exists()


def test_names_are_listed_and_bench_says_where_it_works(home: Path) -> None:
    assert "fedvarp" in fedstale(home, "list")
    done = subprocess.run(
        [home / "bin" / "fedstale", "bench"], cwd=home, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "bench needs a checkout of fedstale" in done.stderr
