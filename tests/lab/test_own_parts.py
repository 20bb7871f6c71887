"""The key of a run covers what its own parts import and read; without own parts it is what it was."""

import sys
from pathlib import Path

import numpy as np
import pytest

from fedstale.lab.plan import Planned, plan
from fedstale.lab.schema import read

RULE = """
import numpy as np
import fedstale as fs
from own_helper import FACTOR

@fs.part
class Scaled:
    table: str = ""
    def init(self, n, d): return None
    def aggregate(self, state, r):
        import own_late
        return np.float32(FACTOR * own_late.more()) * r.updates.mean(axis=0), None
"""
DATA = """
from pathlib import Path
import numpy as np
from fedstale.data import Dataset

def load():
    x = np.concatenate([np.load(path) for path in sorted(Path(__file__).parent.glob("*.npy"))])
    return Dataset("squares", x, np.arange(40) % 2, 40, 2, (0.5,), (0.5,))
"""
TOML = """
rounds = 2
algorithms = [{ kind = "own_rule:Scaled" }]
participation = { kind = "bernoulli", p = 0.5 }
data = { dataset = "quadratic", clients = 4 }
local = { lr = 0.1 }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an experiment, a rule of its own, and what that imports."""
    others = [
        entry for entry in sys.path if not (Path(entry) / "own_rule.py").exists()
    ]  # without other tests' folders
    monkeypatch.setattr("sys.path", others)
    for name in [name for name in sys.modules if name.startswith("own_")]:
        monkeypatch.delitem(sys.modules, name)
    place = tmp_path / "mine"
    place.mkdir()
    files = {"own_rule.py": RULE, "own_helper.py": "FACTOR = 1.0\n", "own_late.py": "from own_deep import more\n",
             "own_deep.py": "def more(): return 1.0\n", "own_data.py": DATA, "own.toml": TOML}  # fmt: skip
    for name, text in files.items():
        (place / name).write_text(text)
    np.save(place / "images.npy", np.zeros((40, 1, 2, 2), np.uint8))
    return place


def planned(folder: Path, *changes: str) -> Planned:
    return plan(read(folder / "own.toml", changes), folder / "runs")[0]


@pytest.mark.parametrize("name", ["own_rule.py", "own_helper.py", "own_late.py", "own_deep.py"])
def test_a_change_of_a_module_that_a_rule_imports_is_another_run(folder: Path, name: str) -> None:
    before = planned(folder).folder.path.name
    assert planned(folder).folder.path.name == before
    file = folder / name
    file.write_text(file.read_text().replace("1.0", "0.5") + "# changed\n")
    assert planned(folder).folder.path.name != before


def test_changed_code_is_also_used_in_the_same_process(folder: Path) -> None:
    planned(folder)
    (folder / "own_helper.py").write_text("FACTOR = 0.25\n")
    assert type(planned(folder).algorithm.strategy).aggregate.__globals__["FACTOR"] == 0.25


def test_a_change_of_the_samples_of_a_dataset_is_another_run(folder: Path) -> None:
    data = 'data = { dataset = "own_data:load", clients = 4, partition = "iid" }'
    (folder / "own.toml").write_text(TOML.replace('data = { dataset = "quadratic", clients = 4 }', data))
    before = planned(folder).folder.path.name
    assert planned(folder).folder.path.name == before
    np.save(folder / "images.npy", np.ones((40, 1, 2, 2), np.uint8))
    assert planned(folder).folder.path.name != before


@pytest.mark.parametrize("named", ["in the code", "as a setting"])
def test_a_change_of_a_file_that_a_part_names_is_another_run(
    folder: Path, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    change = ["algorithms=[{ kind = 'own_rule:Scaled', table = 'table.csv' }]"] if named == "as a setting" else []
    if not change:
        (folder / "own_late.py").write_text("def more(): return float(open('table.csv').read())\n")
    (folder / "table.csv").write_text("1")
    before = planned(folder, *change).folder.path.name
    (folder / "table.csv").write_text("2")
    assert planned(folder, *change).folder.path.name != before


def test_a_module_beside_the_file_comes_before_an_installed_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "own_rule.py").write_text(RULE.replace("FACTOR *", "9.0 *"))
    (installed / "own_helper.py").write_text("FACTOR = 9.0\n")
    monkeypatch.setattr("sys.path", [str(installed), *sys.path])
    rule = type(planned(folder).algorithm.strategy)
    assert sys.modules[rule.__module__].__file__ == str(folder / "own_rule.py")
    assert rule.aggregate.__globals__["FACTOR"] == 1.0


def test_a_folder_with_a_module_of_the_same_name_has_its_own(folder: Path, tmp_path: Path) -> None:
    planned(folder)
    other = tmp_path / "other"
    folder.rename(other)
    (other / "own_helper.py").write_text("FACTOR = 3.0  # another\n")
    assert type(planned(other).algorithm.strategy).aggregate.__globals__["FACTOR"] == 3.0


def test_a_module_of_pythons_own_name_does_not_hide_pythons(folder: Path) -> None:
    (folder / "random.py").write_text("raise RuntimeError('this is not Python\\'s own')\n")
    planned(folder)
    assert sys.path.index(str(folder)) > max(k for k, entry in enumerate(sys.path) if entry.endswith("lib-dynload"))


def test_runs_without_own_parts_keep_their_names(tmp_path: Path) -> None:
    (tmp_path / "plain.toml").write_text(TOML.replace('{ kind = "own_rule:Scaled" }', '"fedavg"'))
    assert plan(read(tmp_path / "plain.toml"), tmp_path)[0].folder.path.name == "fedavg-s1-7ae5c00e7f"
