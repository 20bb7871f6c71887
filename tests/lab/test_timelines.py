"""How different the clients of an experiment are: before it runs, and in every evaluated round of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstale.lab.execute import execute
from fedstale.lab.plan import plan
from fedstale.lab.runs.store import open_store
from fedstale.lab.schema import check
from fedstale.lab.timelines import describe

RAW: dict[str, Any] = {
    "name": "try", "rounds": 2, "seeds": [1], "engine": "serial", "algorithms": ["fedavg"],
    "data": {"dataset": "quadratic", "clients": 2, "centers": [[1.0, 0.0], [0.0, 3.0]], "start": [2.0, 0.0]},
    "local": {"lr": 0.1, "steps": 1}, "participation": {"kind": "bernoulli", "p": 1.0},
}  # fmt: skip


def test_an_experiment_without_a_clock_tells_how_different_its_clients_are() -> None:
    # gradients (1, 0) and (2, -3), mean (1.5, -1.5): σ_g² = mean of ‖(-.5, 1.5)‖² and the same
    assert describe(check(RAW)) == pytest.approx({"clients": 2, "diversity": 2.5, "gradient": np.sqrt(4.5)})
    timed = describe(check(RAW | {"clock": {"round_seconds": 20.0}}))
    assert (timed["steps"], timed["diversity"]) == (2, pytest.approx(2.5))


def test_the_noise_of_gradients_does_not_count_as_difference(tmp_path: Path) -> None:
    noisy = check(RAW | {"heterogeneity": True, "data": RAW["data"] | {"noise": 5.0}})
    assert describe(noisy)["diversity"] == pytest.approx(2.5, abs=1)  # one gradient each adds 25 on average
    list(execute(noisy, planned := plan(noisy, open_store(tmp_path))))
    assert [line["diversity"] for line in planned[0].folder.metrics()] == pytest.approx([2.5] * 2, abs=1)


def test_a_run_records_it_in_every_evaluated_round(tmp_path: Path) -> None:
    experiment = check(RAW | {"heterogeneity": True})
    planned = plan(experiment, open_store(tmp_path))
    list(execute(experiment, planned))
    w = np.array([2.0, 0.0])
    for line in planned[0].folder.metrics():
        w = w - 0.1 * (w - [0.5, 1.5])
        F = [0.5 * float(np.sum((w - c) ** 2)) for c in ([1.0, 0.0], [0.0, 3.0])]
        assert line["gap"] == pytest.approx(np.mean(F), rel=1e-5)
        assert line["largest_gap"] == pytest.approx(max(F), rel=1e-5)
        assert line["diversity"] == pytest.approx(2.5, rel=1e-5)
        assert line["gradient"] == pytest.approx(np.linalg.norm(w - [0.5, 1.5]), rel=1e-5)
    assert "gap" not in plan(check(RAW), tmp_path)[0].config  # and no other run is called otherwise
    assert plan(check(RAW), tmp_path)[0].folder.path != planned[0].folder.path
