"""A new folder runs at once."""

import ast
import tomllib
from pathlib import Path

import pytest

from fedstale import registry, testing
from fedstale.cli.new import Kind
from fedstale.lab import schema
from fedstale.lab.plan import plan
from tests.cli.commands import fedstale


@pytest.mark.parametrize("kind", [*Kind])
def test_a_folder_has_a_readme_of_about_ten_lines_and_its_code_can_be_read(tmp_path: Path, kind: Kind) -> None:
    done = fedstale("new", str(tmp_path / "mine"), "--kind", kind.value)
    assert "next: cd" in done.stdout
    assert 8 <= len((tmp_path / "mine" / "README.md").read_text().splitlines()) <= 13
    for path in (tmp_path / "mine").rglob("*.py"):
        ast.parse(path.read_text())
    assert not [*(tmp_path / "mine").rglob("*.txt")]


def test_the_tables_can_be_planned_and_name_their_hospitals(tmp_path: Path) -> None:
    fedstale("new", str(tmp_path / "mine"))
    experiment = schema.read(tmp_path / "mine" / "experiment.toml")
    assert experiment.data["clients"] == 12
    assert plan(experiment, tmp_path / "runs")[0].participation.names[0] == "Aachen"  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["images", "text", "own-model"])
def test_it_runs(tmp_path: Path, kind: str) -> None:
    fedstale("new", str(tmp_path / "mine"), "--kind", kind)
    words = ["run", "experiment.toml", "-c", "rounds=1", "--seeds", "1", "-c", 'algorithms=["fedavg"]']
    done = fedstale(*words, cwd=tmp_path / "mine")
    assert done.returncode == 0, done.stderr
    assert "fedavg" in done.stdout


@pytest.mark.filterwarnings("error::FutureWarning")  # it uses no name that goes with the next release
def test_a_package_of_parts_names_a_strategy_that_passes_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fedstale("new", str(tmp_path / "mine"), "--kind", "parts")
    told = tomllib.loads((tmp_path / "mine" / "pyproject.toml").read_text())
    ((name, own),) = told["project"]["entry-points"]["fedstale.parts"].items()
    monkeypatch.syspath_prepend(tmp_path / "mine")
    testing.check_strategy(registry.STRATEGIES.find(own, "kind")())
    assert f'kind = "{name.partition(".")[2]}"' in (tmp_path / "mine" / "experiment.toml").read_text()


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    done = fedstale("new", str(tmp_path))
    assert "must be a new or an empty folder" in done.stderr
