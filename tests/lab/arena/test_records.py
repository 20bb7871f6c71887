"""What is read of a contest, beside what its runs say."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.lab.arena.records import read
from fedstale.lab.runs.store import RunFolder
from tests.lab.arena.small_suite import finished


def test_scores_curves_and_costs_are_those_of_the_runs(tmp_path: Path) -> None:
    record = finished(tmp_path)
    held = read(tmp_path)
    assert [c.name for c in held.cells] == ["bowl, halves, p known", "bowl, turns, p estimated"]
    assert [*held.full] == ["bowl"]
    rule, entry = record["cells"][1]["rules"]["stale"], held.cells[0].entries["stale"]
    runs = [RunFolder(tmp_path / "runs" / name) for name in rule["runs"]]
    assert entry.scores["objective"].tolist() == [run.result()["objective"]["last10"] for run in runs]
    lines = [line for run in runs for line in run.metrics()]
    over = [np.mean([line["objective"] for line in run.metrics() if "objective" in line]) for run in runs]
    assert entry.scores["objective_over_time"] == pytest.approx(over)
    assert entry.costs["up"] == pytest.approx(np.mean([line["participants"] for line in lines]))
    assert entry.curves["objective"].rounds[-1] == 20


def test_clients_that_were_asked_and_left_out_cost_their_look(tmp_path: Path) -> None:
    record = finished(tmp_path)
    rule = record["cells"][1]["rules"]["stale"]
    rule["units"] |= {"flops": 5e6, "look": 1e6}
    (tmp_path / "arena.json").write_text(json.dumps(record))
    for name in rule["runs"]:
        path = tmp_path / "runs" / name / "metrics.jsonl"
        lines = [json.loads(line) | {"available": 4, "participants": 1} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        (path.parent / "checksums.json").unlink()
    assert read(tmp_path).cells[0].entries["stale"].costs["mflop"] == pytest.approx(5 + 3 * 1)


def test_a_run_that_diverged_has_no_score(tmp_path: Path) -> None:
    record = finished(tmp_path)
    run = tmp_path / "runs" / record["cells"][1]["rules"]["stale"]["runs"][1]
    for name in ("result.json", "checksums.json"):
        (run / name).unlink()
    entry = read(tmp_path).cells[0].entries["stale"]
    assert entry.diverged == 1
    assert np.isfinite(entry.scores["objective"]).tolist() == [True, False]


@pytest.mark.parametrize(
    ("refused", "objective", "lost"), [(0, 1.0, 0), (50, 1.0, 0), (2000, 1.0, 1), (0, math.nan, 1)]
)
def test_a_run_that_used_few_updates_or_has_no_number_has_diverged(
    refused: int, objective: float, lost: int, tmp_path: Path
) -> None:
    record = finished(tmp_path)
    path = tmp_path / "runs" / record["cells"][1]["rules"]["stale"]["runs"][1] / "result.json"
    result = json.loads(path.read_text())
    result["refused"], result["objective"]["last10"] = refused, objective
    path.write_text(json.dumps(result))
    (path.parent / "checksums.json").unlink()
    entry = read(tmp_path).cells[0].entries["stale"]
    assert entry.diverged == lost
    assert np.isfinite(entry.scores["objective"]).tolist() == [True, not lost]
    runs = [RunFolder(tmp_path / "runs" / name) for name in record["cells"][1]["rules"]["stale"]["runs"]]
    ends = [run.metrics()[-1]["objective"] for run in runs]
    assert entry.curves["objective"].values[-1] == pytest.approx(ends[0] if lost else np.mean(ends))


def test_the_worst_tenth_of_the_clients(tmp_path: Path) -> None:
    record = finished(tmp_path)
    for name in record["cells"][1]["rules"]["fedavg"]["runs"]:
        (tmp_path / "runs" / name / "checksums.json").unlink()
    for table, worst in (
        ([0.9, None, 0.2, 0.5], 0.2),
        ([*np.linspace(0.1, 0.9, 14)], 0.1),
        ([*np.linspace(0.1, 0.9, 16)], (0.1 + 0.1 + 0.8 / 15) / 2),
    ):
        for name in record["cells"][1]["rules"]["fedavg"]["runs"]:
            (tmp_path / "runs" / name / "clients.json").write_text(json.dumps({"accuracy": table}))
        found = read(tmp_path).cells[0].entries["fedavg"].scores["worst_decile"]
        np.testing.assert_allclose(found, [worst, worst])  # one of 14 and two of 16 are the nearest to a tenth


def test_a_folder_without_a_contest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no finished contest"):
        read(tmp_path)
