"""The rows of the page: every state a run can be in, and every change of a store while somebody looks."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedstale.lab.runs.store import RunFolder
from fedstale.view.live.index import Index, Row
from tests.view.live.stores import computed, unfinish


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index") / "runs"
    computed(folder)
    return folder


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "runs")
    return tmp_path / "runs"


def row(index: Index, run: RunFolder) -> Row:
    return index.rows[run.path]


def test_it_knows_every_run_its_state_and_its_value(store: Path) -> None:
    index = Index([store])
    assert index.scan()
    assert not index.scan()  # nothing has changed
    assert len(index.rows) == 6
    for r in index.all():
        result = r.folder.result()
        assert (r.state, r.round, r.rounds) == ("finished", 12, 12)
        assert (r.metric, r.value) == ("accuracy", result["accuracy"]["last10"])
    assert [len(rows) for rows in index.experiments().values()] == [6]


def test_a_rule_around_another_is_shown_in_words(tmp_path: Path) -> None:
    wrapped = {"kind": "clipped", "strategy": {"kind": "fedavg"}, "bound": 1.0}
    computed(tmp_path / "runs", rounds=2, seeds=[1], algorithms=[wrapped])
    index = Index([tmp_path / "runs"])
    index.scan()
    assert [r.label for r in index.all()] == ["clipped strategy=fedavg, bound=1.0"]


def test_a_run_is_running_while_another_process_has_it(store: Path) -> None:
    run = RunFolder(sorted(store.glob("fedavg-*"))[0])
    unfinish(run, 6)
    index = Index([store])
    index.scan()
    assert row(index, run).state == "interrupted"
    hold = "import sys; from pathlib import Path; from fedstale.lab.runs.store import RunFolder\n"
    hold += "with RunFolder(Path(sys.argv[1])).locked(): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        assert index.scan()
        found = row(index, run)
        assert (found.state, found.round, found.speed, found.left) == ("running", 6, 3.0, 2.0)
    assert index.scan()
    assert row(index, run).state == "interrupted"


def test_new_deleted_and_recomputed_runs_are_noticed(store: Path) -> None:
    names = sorted(p for p in store.iterdir() if p.is_dir())
    shutil.move(names[0], store.parent / "aside")
    index = Index([store])
    index.scan()
    assert len(index.rows) == 5
    shutil.move(store.parent / "aside", names[0])
    assert index.scan()
    assert len(index.rows) == 6
    shutil.rmtree(names[1])
    assert index.scan()
    assert names[1] not in index.rows
    unfinish(RunFolder(names[2]), 3)  # as --again does
    assert index.scan()
    assert index.rows[names[2]].state == "interrupted"
    shutil.rmtree(store)
    assert index.scan()
    assert index.all() == []


def test_damaged_runs_have_a_row_that_says_so(store: Path) -> None:
    names = sorted(p for p in store.iterdir() if p.is_dir())
    (names[0] / "config.json").write_text("{")
    (names[1] / "config.json").write_text('{"label": 3}')
    (names[2] / "result.json").write_text("nonsense")
    (names[3] / "status.json").write_text("[]")
    (names[4] / "diverged.json").write_text('{"why": "too large"}')
    for name in ("result.json", "checksums.json"):
        (names[4] / name).unlink()
    index = Index([store])
    index.scan()
    states = [index.rows[name].state for name in names]
    assert states == ["damaged", "damaged", "interrupted", "finished", "diverged", "finished"]
    assert "cannot be read" in index.rows[names[0]].note


def test_a_store_may_come_later(tmp_path: Path) -> None:
    index = Index([tmp_path / "runs"])
    assert not index.scan()
    computed(tmp_path / "runs", rounds=2, seeds=[1], algorithms=["fedavg"])
    assert index.scan()
    assert len(index.all()) == 1
