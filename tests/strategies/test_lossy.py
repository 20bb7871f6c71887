"""The rules of the lossy-links chapter: DMA-PL (FedAvg), UDMA-PL (UDMA) and UPGA-PL (Unbiased)."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstale.channels import Loss, Packets
from fedstale.core import BadInput, Local, Round
from fedstale.engines import Serial
from fedstale.participation import Bernoulli
from fedstale.simulate import simulate
from fedstale.strategies import FedAvg, Unbiased
from fedstale.strategies.udma import UDMA
from fedstale.tasks.quadratic import Quadratic
from fedstale.testing import check_strategy

N, D = 4, 3
a = np.array([0.4, 0.3, 0.2, 0.1], np.float32)
rng = np.random.default_rng(0)
w, Δ = rng.standard_normal(D).astype(np.float32), rng.standard_normal((N, D)).astype(np.float32)
models = w + Δ.astype(np.float64)  # (n, d) w_i


def closed(arrived, p, updates=Δ):
    heard = np.flatnonzero(arrived.any(axis=1))
    probs = np.asarray(p, np.float32)
    return Round(1, w, heard, updates[heard], arrived[heard], np.zeros(len(heard), np.float32), a, probs)


def after(rule, r):
    return w + rule.aggregate(rule.init(N, D), r)[0].astype(np.float64)


masks = st.lists(st.lists(st.booleans(), min_size=D, max_size=D), min_size=N, max_size=N).map(np.array)
probabilities = st.lists(st.floats(0.05, 1), min_size=N, max_size=N).map(np.array)


@settings(derandomize=True, deadline=None)
@given(arrived=masks, p=probabilities)
def test_models_are_averaged_coordinate_by_coordinate(arrived, p):
    """(4.2) and (4.4) as they are written, over the models whose coordinate arrived."""
    r = closed(arrived, p)
    for j in range(D):
        here = np.flatnonzero(arrived[:, j])
        dma = (a[here] @ models[here, j]) / a[here].sum() if len(here) else w[j]
        udma = (a[here] / p[here]) @ models[here, j]
        assert after(FedAvg(), r)[j] == pytest.approx(dma, abs=1e-5)
        assert after(UDMA(), r)[j] == pytest.approx(udma, rel=1e-5, abs=1e-4)


def test_keeps_the_contract_of_a_strategy():
    check_strategy(UDMA())


def test_nobody_heard_keeps_the_model_or_empties_it():
    r = closed(np.zeros((N, 1), bool), np.full(N, 0.5))
    assert np.array_equal(after(FedAvg(), r), w)
    assert (after(UDMA(), r) == 0).all()


def test_what_did_not_arrive_is_not_looked_at():
    arrived = np.array([[True, False, True]] * N)
    spoilt = np.where(arrived, Δ, np.float32(np.nan))
    for rule in (FedAvg(), UDMA()):
        np.testing.assert_array_equal(
            after(rule, closed(arrived, np.full(N, 0.5), spoilt)), after(rule, closed(arrived, np.full(N, 0.5)))
        )


@pytest.mark.parametrize("rule", [UDMA(), Unbiased()], ids=["UDMA-PL", "UPGA-PL"])
def test_inverse_weights_are_right_on_average_also_with_nobody_heard(rule):
    p, mean = np.array([0.9, 0.5, 0.2, 0.7]), np.zeros(D)
    for outcome in product([True, False], repeat=N):
        chance = np.prod(np.where(outcome, p, 1 - p))
        mean += chance * after(rule, closed(np.array(outcome)[:, None], p))
    np.testing.assert_allclose(mean, a.astype(np.float64) @ models, atol=1e-6)


def test_without_losses_all_rules_are_the_same():
    task = Quadratic.random(N, D, seed=2, noise=0.2)
    ends = []
    for rule in (FedAvg(), UDMA(), Unbiased()):
        engine = Serial(task, Local(lr=0.1, steps=3))
        *_, last = simulate(engine, rule, Bernoulli(1.0), rounds=10, channel=Loss(0.0))
        ends.append(last.params)
    np.testing.assert_allclose(ends[1], ends[0], atol=1e-5)
    np.testing.assert_allclose(ends[2], ends[0], atol=1e-5)


@pytest.mark.parametrize(
    "channel", [Loss([0.1] * 5 + [0.9] * 5), Packets(1, [0.1] * 5 + [0.9] * 5)], ids=["whole", "packets"]
)
def test_only_updates_with_inverse_weights_settle_at_the_optimum(channel):
    """Half the clients lose 10 %, half 90 %: DMA-PL ends beside w*, UDMA-PL never settles."""
    side = np.repeat([[3.0, 3.0], [-1.0, -1.0]], 5, axis=0)
    task, local = Quadratic(side), Local(lr=0.2, steps=2, decay=0.1)
    distances = {}
    for rule in (FedAvg(), UDMA(), Unbiased()):
        run = simulate(Serial(task, local), rule, Bernoulli(1.0), rounds=300, seed=1, channel=channel)
        distances[rule] = [task.evaluate(s.params)["distance"] for s in run][-50:]
    assert np.mean(distances[Unbiased()]) < 0.3
    assert min(distances[FedAvg()]) > 2
    assert np.mean(distances[UDMA()]) > 0.9


def test_what_never_arrives_is_refused():
    with pytest.raises(BadInput, match="divides by the participation probability"):
        simulate(Serial(Quadratic(np.eye(2)), Local(0.1)), UDMA(), Bernoulli(1.0), rounds=1, channel=Loss([0, 1]))
