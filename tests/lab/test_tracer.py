"""Realised weights: what each client really counted."""

import numpy as np
import pytest

import fedstale as fs
from fedstale.core import hooks_of
from fedstale.lab.probes import Tracer


def realised(
    strategy: fs.core.Strategy, p_min: float, rounds: int, estimator: fs.core.Estimator = fs.estimators.Known()
):
    task = fs.Quadratic.random(6, 3)
    engine = fs.Serial(task, fs.Local(lr=0.01, steps=2))
    snapshots = fs.simulate(
        engine, Tracer(strategy), fs.TwoGroups(p_min), rounds=rounds, seed=4, estimator=estimator
    )
    return np.array([s.checkpoint.state.weights for s in snapshots])


def test_fedavg_neglects_who_rarely_comes_and_the_unbiased_rules_do_not() -> None:
    fedavg = realised(fs.FedAvg(), 0.2, 1200).mean(axis=0)
    assert (fedavg[3:] < 0.08).all()
    assert (fedavg[:3] > 0.2).all()
    for strategy in (fs.Unbiased(), fs.FedStale(0.5), fs.FedStale(1.0)):
        assert realised(strategy, 0.2, 1200).mean(axis=0) == pytest.approx(np.full(6, 1 / 6), abs=0.03)


def test_memory_counts_absent_clients() -> None:
    weights = realised(fs.strategies.MIFA(), 0.2, 200)
    assert weights[-1] == pytest.approx(np.full(6, 1 / 6))


RULES = [
    fs.FedAvg(), fs.FedStale(0.5), fs.strategies.MIFA(), fs.strategies.F3AST(clients=2),
    fs.strategies.CAFed(kappa2=0.1), fs.strategies.MoreAvailable(), fs.strategies.Scaffold(),
    fs.recipe("auto").strategy,
]  # fmt: skip


@pytest.mark.parametrize("strategy", RULES, ids=lambda s: type(s).__name__)
def test_tracing_changes_no_bit(strategy: fs.core.Strategy) -> None:
    """Also of rules that select, add to gradients, or tune themselves."""
    task = fs.Quadratic.random(6, 3, noise=0.1)
    engine = fs.Serial(task, fs.Local(lr=0.05))
    plain, traced = (
        list(fs.simulate(engine, s, fs.TwoGroups(0.3), rounds=20, seed=1)) for s in (strategy, Tracer(strategy))
    )
    for x, y in zip(plain, traced, strict=True):
        np.testing.assert_array_equal(x.params, y.params)
        np.testing.assert_array_equal(x.chosen, y.chosen)


def test_a_rule_that_selects_is_traced_with_what_its_selection_remembers() -> None:
    """F3AST divides by the rates that `select` follows: so does its shadow."""
    task = fs.Quadratic.random(6, 3)
    engine = fs.Serial(task, fs.Local(lr=0.01))
    rule = Tracer(fs.strategies.F3AST(clients=2, rate=0.2))
    for s in fs.simulate(engine, rule, fs.TwoGroups(0.5), rounds=20, seed=1):
        traced = s.checkpoint.state
        wanted = np.zeros(6)
        wanted[s.clients] = task.weights[s.clients] / traced.inner.r[s.clients]
        assert traced.weights == pytest.approx(wanted)


def test_a_tracer_has_the_hooks_of_its_strategy() -> None:
    for strategy in (fs.FedAvg(), fs.strategies.F3AST(2), fs.strategies.Scaffold(), fs.FedStale()):
        assert hooks_of(Tracer(strategy)).used() == hooks_of(strategy).used()


def test_the_self_tuning_rule_leaves_nobody_behind() -> None:
    """A rare client is not believed to stand for all that is absent, and still has most of its weight."""
    weights = realised(fs.recipe("auto").strategy, 0.3, 1000).mean(axis=0)
    assert weights[:3] == pytest.approx(np.full(3, 1 / 6), abs=0.01)
    assert (weights[3:] > 0.12).all()
