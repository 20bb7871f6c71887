"""Realised weights: what each client really counted."""

import numpy as np
import pytest

import fedstale as fs
from fedstale.experiments.tracer import Tracer


def realised(strategy: fs.core.Strategy, p_min: float, rounds: int, estimator: fs.core.Estimator = fs.Known()):
    task = fs.Quadratic.random(6, 3)
    engine = fs.Serial(task, fs.Local(lr=0.01, steps=2))
    snapshots = fs.simulate(
        engine, Tracer(strategy), fs.TwoGroups(p_min), rounds=rounds, seed=4, estimator=estimator
    )
    return np.array([s.checkpoint.state.weights for s in snapshots])


def test_fedavg_neglects_who_rarely_comes_and_the_unbiased_rules_do_not() -> None:
    fedavg = realised(fs.FedAvg(), 0.2, 3000).mean(axis=0)
    assert (fedavg[3:] < 0.08).all()
    assert (fedavg[:3] > 0.2).all()
    for strategy in (fs.Unbiased(), fs.FedStale(0.5), fs.FedStale(1.0)):
        assert realised(strategy, 0.2, 3000).mean(axis=0) == pytest.approx(np.full(6, 1 / 6), abs=0.02)


def test_memory_counts_absent_clients() -> None:
    weights = realised(fs.MIFA(), 0.2, 200)
    assert weights[-1] == pytest.approx(np.full(6, 1 / 6))


def test_tracing_changes_no_bit() -> None:
    task = fs.Quadratic.random(6, 3, noise=0.1)
    engine = fs.Serial(task, fs.Local(lr=0.05))
    for strategy in (fs.FedAvg(), fs.FedStale(0.5), fs.MIFA()):
        plain, traced = (
            list(fs.simulate(engine, s, fs.TwoGroups(0.3), rounds=20, seed=1))[-1]
            for s in (strategy, Tracer(strategy))
        )
        np.testing.assert_array_equal(plain.params, traced.params)
