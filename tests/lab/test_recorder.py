"""Recording a run: the numbers of a line, which rounds are evaluated, and what a checkpoint relies on."""

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale.core import Array, Local, Snapshot
from fedstale.lab.plan import plan
from fedstale.lab.probes import Tracer
from fedstale.lab.recorder import Recorder, quantiles, summary
from fedstale.lab.runs import store
from fedstale.lab.runs.store import RunFolder
from fedstale.lab.schema import check
from fedstale.simulate import Run, checked

ROUNDS = 20
HERE = np.random.default_rng(3).random((ROUNDS, 4)) < 0.5
HERE[:, 0], HERE[5] = [True] * 10 + [False] * 10, False


class Sick(fs.Quadratic):
    """The updates of client 3 are never finite."""

    def gradient(self, params: Array, client: int, batch: Any) -> tuple[float, Array]:
        loss, gradient = super().gradient(params, client, batch)
        return loss, gradient * np.float32(math.nan) if client == 3 else gradient


TASK = Sick(np.arange(12.0).reshape(4, 3), weights=[1, 2, 3, 4])


def run() -> Run:
    here = HERE.copy()
    here[here.sum(axis=1) == 1, 3] = False  # nobody is refused alone: that would be a divergence
    return checked(Run(fs.Serial(TASK, Local(0.1)), Tracer(fs.FedAvg()), fs.Trace(here), ROUNDS))


def snapshots() -> list[Snapshot]:
    parts = run()
    return list(fs.simulate(parts.engine, parts.strategy, parts.participation, rounds=ROUNDS))


@contextmanager
def recorder(folder: Path, seconds: float = math.inf) -> Iterator[Recorder]:
    raw = {
        "rounds": ROUNDS,
        "evaluate_every": 4,
        "algorithms": ["fedavg"],
        "participation": {"kind": "bernoulli", "p": 1.0},
    }
    (p,) = plan(
        check(
            raw
            | {"name": "try", "seeds": [0], "local": {"lr": 0.1}, "data": {"dataset": "quadratic", "clients": 4}}
        ),
        folder,
    )
    p.folder.path.mkdir(parents=True)
    with closing(Recorder(p, run(), where={}, resume=False, seconds=seconds, keep=False)) as opened:
        yield opened


def test_a_line_has_the_staleness_of_all_clients_and_the_mean_of_the_realised_weights(tmp_path: Path) -> None:
    played, last, weights, refused = snapshots(), np.zeros(4), np.zeros(4), 0
    with recorder(tmp_path) as r:
        for s in played:
            line = r.record(s)
            last[s.clients] = s.t
            weights[s.clients] += TASK.weights[s.clients] / max(TASK.weights[s.clients].sum(), 1e-9)
            refused += len(s.refused)
            assert line.get("lost", []) == s.refused.tolist()  # nothing is lost on its way here
            shares = TASK.weights[s.clients]
            mean = np.average(s.losses, weights=shares) if len(s.clients) else None
            assert line["train_loss"] == (mean if mean is None else pytest.approx(mean))
            np.testing.assert_allclose(line["staleness"], np.quantile(s.t - last, [0.5, 0.9, 1.0]))
            np.testing.assert_allclose(line.get("weights", weights / s.t), weights / s.t, rtol=1e-5)
        assert "weights" in line
        assert r.finish(played[-1].checkpoint)["refused"] == refused > 0


def test_every_so_many_rounds_and_the_last_ten_are_evaluated(tmp_path: Path) -> None:
    with recorder(tmp_path) as r:
        evaluated = [s.t for s in snapshots() if "objective" in r.record(s)]
    assert evaluated == [4, 8, *range(11, 21)]


def test_the_lines_of_a_checkpoint_are_on_the_disk_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[int] = []
    monkeypatch.setattr(RunFolder, "save_checkpoint", lambda self, tree: lines.append(self.rounds_recorded()))
    with recorder(tmp_path, seconds=0.0) as r:
        for s in snapshots()[:3]:
            r.record(s)
    assert lines == [1, 2, 3]


@pytest.mark.parametrize("seconds", [math.inf, 0.0])
def test_a_run_waits_for_the_disk_from_its_first_checkpoint_on(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited, write = set[str](), store.write

    def watched(path: Path, writer: Any, durable: bool = True) -> None:
        waited.update([path.name] if durable else [])
        write(path, writer, durable)

    monkeypatch.setattr(store, "write", watched)
    monkeypatch.setattr("fedstale.lab.recorder.sync", lambda path: waited.add(path.name))
    with recorder(tmp_path, seconds) as r:
        for s in snapshots():
            r.record(s)
        r.finish(s.checkpoint)
    files = "checkpoint.npz", "checksums.json", "result.json", "params.npy", "clients.json", "last.npz"
    always = "config.json", "environment.json", "metrics.jsonl"
    assert waited == ({*files, *always} if seconds == 0 else set())


def test_a_summary_has_the_last_round_the_mean_of_ten_and_the_best() -> None:
    lines = [{"round": t, "objective": float(30 - t) if t < 25 else 20.0 + t} for t in range(1, 31)]
    found = summary(lines)["objective"]
    assert found == {"final": 50.0, "last10": np.mean([9, 8, 7, 6, 45, 46, 47, 48, 49, 50]), "best": 6.0}


@pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 11, 20, 30, 101])
def test_quantiles_are_those_of_numpy_to_the_bit(n: int) -> None:
    for values in np.random.default_rng(n).integers(0, 300, (50, n)):
        assert quantiles(values, 0.5, 0.9, 1.0) == np.quantile(values, [0.5, 0.9, 1.0]).tolist()
