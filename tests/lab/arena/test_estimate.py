"""The cost of a contest before it begins: runs and rounds by counting, seconds by a sample."""

from pathlib import Path

from fedstale.lab.arena import contest, suite
from fedstale.lab.executors import compute
from fedstale.lab.runs import store
from tests.lab.arena.small_suite import finished, raw


def test_runs_and_rounds_are_those_that_a_contest_computes(tmp_path: Path) -> None:
    finished(tmp_path)
    small = suite.checked(raw())
    loads = [contest.load(small, place) for place in suite.places(small)]
    stored = store.runs(tmp_path / "runs")
    assert sum(load.runs for load in loads) == len(stored)
    assert sum(load.rounds for load in loads) == sum(run.config()["rounds"] for run in stored)


def test_a_sample_says_how_long_each_cell_takes() -> None:
    said: list[str] = []

    def work(cells: object) -> None:
        compute(cells, jobs=1, resume=False, command="", say=lambda line: None)  # type: ignore[arg-type]

    small = suite.checked(raw())
    found = contest.estimate(small, work, said.append)
    assert found.seconds > 0
    assert len(said) == 3
    assert said[1].startswith("bowl, halves, p known: 27 runs, about")
