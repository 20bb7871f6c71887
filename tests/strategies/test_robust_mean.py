"""The robust rules against numpy and written-out loops, with and without a memory, and against liars."""

import numpy as np
import pytest
from hypothesis import given, settings

from fedstale.core import BadInput, Round
from fedstale.strategies import FedAvg, Krum, Median, NormBound, TrimmedMean
from tests.strategies.rounds import History, histories, near, numbers, played

CHECK = settings(derandomize=True, deadline=None, max_examples=40)


def columns(history, stale):
    """For every round, the values of each coordinate that a robust rule may use, in plain lists."""
    kept, out = {}, []
    for r in history.rounds:
        said = numbers(r).updates
        for i, row in said.items():
            if any(x is not None for x in row):
                before = kept.get(i, [0.0] * history.d)
                kept[i] = [b if x is None else x for x, b in zip(row, before, strict=True)]
        rows = [kept[i] for i in sorted(kept)] if stale else list(said.values())
        out.append([[row[c] for row in rows if row[c] is not None] for c in range(history.d)])
    return out


def agrees(rule, history, statistic, stale):
    wanted = [[statistic(values) if values else 0.0 for values in row] for row in columns(history, stale)]
    scales = [np.abs(step) + 1e-6 for step in wanted]
    near(played(rule, history), wanted, scales)


@pytest.mark.parametrize("stale", [False, True])
@CHECK
@given(history=histories())
def test_the_median_is_numpys_of_each_coordinate(stale, history):
    agrees(Median(stale=stale), history, np.median, stale)


@pytest.mark.parametrize("stale", [False, True])
@CHECK
@given(history=histories())
def test_the_trimmed_mean_leaves_out_both_ends(stale, history):
    def trimmed(values):
        cut = int(0.3 * len(values))
        return float(np.mean(sorted(values)[cut : len(values) - cut]))

    agrees(TrimmedMean(0.3, stale), history, trimmed, stale)


@CHECK
@given(history=histories())
def test_krum_takes_the_update_nearest_to_its_neighbours(history):
    for step, r in zip(played(Krum(liars=0.3), history), history.rounds, strict=True):
        rows = np.where(r.arrived, r.updates, 0).astype(np.float64)
        k = len(rows)
        if k == 0:
            assert not step.any()
            continue
        near_by = max(k - int(0.3 * k) - 2, 1)
        scores = [
            sum(sorted(float(np.sum((x - y) ** 2)) for j, y in enumerate(rows) if j != i)[:near_by])
            for i, x in enumerate(rows)
        ]
        best = min(range(k), key=lambda i: scores[i])
        np.testing.assert_allclose(step, rows[best], rtol=1e-6)


def test_multi_krum_averages_the_best():
    history = honest_and_liars(liars=1)
    honest = history.rounds[0].updates[:9].astype(np.float64)
    apart = [np.sort([np.sum((x - y) ** 2) for y in honest])[1:7].sum() for x in honest]  # 10 - 2 - 2 neighbours
    due = honest[np.argsort(apart)[:4]].mean(axis=0)
    np.testing.assert_allclose(played(Krum(liars=0.2, keep=4), history)[0], due, rtol=1e-6)


@CHECK
@given(history=histories())
def test_the_norm_bound_shrinks_what_is_longer_than_the_median(history):
    wanted = []
    for r in history.rounds:
        rows, arrived = (
            np.where(r.arrived, r.updates, 0).astype(np.float64),
            np.broadcast_to(r.arrived, r.updates.shape),
        )
        norms, a = np.linalg.norm(rows, axis=1), r.weights[r.clients].astype(np.float64)
        total, weight = np.zeros(history.d), np.zeros(history.d)
        for k, row in enumerate(rows):
            shrink = min(1.0, 2 * np.median(norms) / norms[k]) if norms[k] else 1.0
            total, weight = total + a[k] * shrink * row, weight + a[k] * arrived[k]
        wanted.append(np.divide(total, weight, out=np.zeros_like(total), where=weight > 0))
    near(played(NormBound(2.0), history), wanted, [np.abs(w).max() * 10 + 1e-6 for w in wanted])


def honest_and_liars(liars):
    """One round of ten clients around (1, 1, 1), the last of which send the opposite, a hundred times as long."""
    rng, ones = np.random.default_rng(0), np.ones(10, np.float32)
    updates = (1 + 0.1 * rng.standard_normal((10, 3))).astype(np.float32)
    updates[10 - liars :] *= -100
    r = Round(1, np.zeros(3, np.float32), np.arange(10), updates, np.ones((10, 1), bool), ones, ones / 10, ones)
    return History(10, 3, [r])


@pytest.mark.parametrize(
    "rule", [Median(), TrimmedMean(0.3), Krum(0.3), Krum(0.3, keep=3), NormBound()], ids=lambda rule: repr(rule)
)
def test_three_liars_of_ten_do_not_turn_the_step_around(rule):
    history = honest_and_liars(3)
    assert (played(FedAvg(), history)[0] < -10).all()
    assert (played(rule, history)[0] > 0.2).all()


def test_settings_out_of_range_are_refused():
    for make in (
        lambda: TrimmedMean(0.5),
        lambda: Krum(liars=-0.1),
        lambda: Krum(keep=0),
        lambda: NormBound(0.0),
        lambda: NormBound(np.inf),
    ):
        with pytest.raises(BadInput, match="got"):
            make()
