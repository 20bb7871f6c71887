"""Early stopping: where a run stops, why, and that a resumed run stops there too."""

from pathlib import Path
from typing import Any

import pytest

import fedstale as fs
from fedstale.core import BadInput
from fedstale.lab.cadence import Stopping
from fedstale.lab.execute import execute
from fedstale.lab.plan import plan
from fedstale.lab.runs.metrics import monitored
from fedstale.lab.runs.store import RunFolder, open_store
from fedstale.lab.schema import check
from fedstale.simulate import Interrupted

RAW: dict[str, Any] = {
    "name": "try", "rounds": 40, "algorithms": ["fedavg", {"kind": "fedavg", "label": "slow", "lr": 1e-4}],
    "data": {"dataset": "quadratic", "clients": 4, "dimension": 3}, "local": {"lr": 0.1}, "evaluate_every": 2,
    "participation": {"kind": "bernoulli", "p": 1.0},
}  # fmt: skip


def computed(folder: Path, stop_after: int = 0, resume: bool = False, **changes: Any) -> list[RunFolder]:
    experiment = check(RAW | changes)
    planned = plan(experiment, open_store(folder))
    asked = iter(range(1, 1000))
    stop = (lambda: next(asked) == stop_after) if stop_after else (lambda: False)
    if stop_after:
        with pytest.raises(Interrupted):
            list(execute(experiment, planned, stop=stop, keep_checkpoints=True))
    else:
        list(execute(experiment, planned, resume=resume, keep_checkpoints=True))
    return [p.folder for p in planned]


def test_a_target_ends_the_run_that_reaches_it_and_the_result_says_so(tmp_path: Path) -> None:
    fast, slow = computed(tmp_path / "runs", target=0.2, monitor="distance")
    lines, result = fast.metrics(), fast.result()
    assert len(lines) == result["rounds"] < 40
    assert lines[-1]["distance"] <= 0.2 < min(line["distance"] for line in lines[:-1] if "distance" in line)
    assert result["stopped"].startswith("distance 0.")
    assert result["stopped"].endswith(f"reached the target 0.2 in round {len(lines)}")
    assert slow.result()["rounds"] == 40
    assert "stopped" not in slow.result()
    assert fast.config()["target"] == 0.2


@pytest.mark.parametrize(("name", "short"), [("objective", 0.51), ("accuracy", 0.49)])
def test_a_target_is_reached_by_the_value_itself(name: str, short: float) -> None:
    seen = Stopping({"target": 0.5, "monitor": name})
    seen.see({"round": 1, name: short})
    assert not seen.why
    seen.see({"round": 2, name: 0.5})
    assert seen.why.endswith("in round 2")


def test_patience_counts_rounds_without_a_better_value() -> None:
    seen = Stopping({"patience": 3})
    for t, value in enumerate([5.0, 4.0, 4.0, float("nan"), 6.0], 1):
        assert not seen.why
        seen.see({"round": t, "objective": value})
    assert seen.why == "objective did not improve on 4 of round 2 until round 5"
    better = Stopping({"patience": 2, "monitor": "accuracy"})
    for t in range(1, 9):
        better.see({"round": t, "accuracy": 0.1 * t, "objective": 1.0} if t % 2 else {"round": t})
    assert not better.why


def test_what_is_watched() -> None:
    assert monitored({"accuracy": 1, "validation_loss": 1, "objective": 1}, {}) == "validation_loss"
    assert monitored({"objective": 1, "accuracy": 1}, {}) == "accuracy"
    assert monitored({"round": 3}, {"monitor": "accuracy"}) == ""
    assert monitored({"accuracy": 1, "iou": 1}, {"main": "iou"}) == "iou"
    assert monitored({"accuracy": 1, "iou": 1, "validation_iou": 1}, {"main": "iou"}) == "validation_iou"
    with pytest.raises(BadInput, match="monitor 'acuracy' is unknown; did you mean 'accuracy'"):
        monitored({"accuracy": 1}, {"monitor": "acuracy"})


def test_a_metric_that_is_not_evaluated_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="monitor 'accuracy' is unknown"):
        computed(tmp_path / "runs", patience=3, monitor="accuracy")
    assert not list((tmp_path / "runs").glob("*/metrics.jsonl"))


def test_interrupted_or_killed_at_its_end_it_stops_in_the_same_round(tmp_path: Path) -> None:
    stop: dict[str, Any] = {"target": 0.2, "monitor": "distance", "algorithms": ["fedavg"]}
    (whole,) = computed(tmp_path / "whole", **stop)
    computed(tmp_path / "parts", stop_after=3, **stop)
    (parts,) = computed(tmp_path / "parts", resume=True, **stop)
    for name in ("metrics.jsonl", "params.npy"):
        assert (whole.path / name).read_bytes() == (parts.path / name).read_bytes()
    for name in ("result.json", "checksums.json"):  # as if it had been killed after its last checkpoint
        (parts.path / name).unlink()
    computed(tmp_path / "parts", resume=True, **stop)
    assert parts.result()["fingerprint"] == whole.result()["fingerprint"]
    assert parts.result()["stopped"] == whole.result()["stopped"]


def test_a_comparison_in_python_stops_early_too(tmp_path: Path) -> None:
    found = fs.compare(
        fs.Quadratic.random(4, 3), ["fedavg"], fs.Bernoulli(1.0), rounds=40, local=fs.Local(lr=0.1),
        out=tmp_path / "runs", target=1, monitor="distance",
    )  # fmt: skip
    assert found.runs[0].result()["rounds"] < 40


def test_a_negative_metric_is_told_with_its_sign() -> None:
    for name, values in (("r2", (-0.5, -0.6, -0.7)), ("objective", (-0.7, -0.6, -0.5))):
        stopping = Stopping({"patience": 2, "monitor": name})
        for t, value in enumerate(values, 1):
            stopping.see({"round": t, name: value})
        assert stopping.why == f"{name} did not improve on {values[0]} of round 1 until round 3"
