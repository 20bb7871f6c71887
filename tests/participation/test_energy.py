"""Batteries against a simulation of every level, and budgets against all choices of rounds."""

from itertools import combinations, islice

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.core.rng import stream
from fedstale.participation import Battery, Budget


@pytest.mark.parametrize(("charge", "cost", "capacity"), [(1, 2, 5), (3, 2, 4), (2, 3, 3)])
def test_a_battery_charges_and_is_spent(charge, cost, capacity):
    battery, h = Battery([0.0, 0.3, 0.8, 1.0], charge, cost, capacity), [0.0, 0.3, 0.8, 1.0]
    rows, rng = np.array(list(islice(battery.rows(4, stream(1)), 4000))), np.random.default_rng(0)
    share, level = np.zeros(4), np.zeros(4)
    for _ in range(4000):
        for i in range(4):
            level[i] = min(level[i] + charge * (rng.random() < h[i]), capacity)
            if level[i] >= cost:
                level[i] -= cost
                share[i] += 1 / 4000
    np.testing.assert_allclose(battery.probs(4), share, atol=0.03)
    np.testing.assert_allclose(rows.mean(axis=0), battery.probs(4), atol=0.03)


def test_batteries_by_hand():
    # a unit a round and two for a round of training: every second round; without charge never
    assert Battery([1.0, 0.0], charge=1, cost=2).probs(2).tolist() == pytest.approx([0.5, 0.0])
    rows = np.array(list(islice(Battery(1.0, 1, 2).rows(8, stream(0)), 6)))
    assert (rows[1:] == ~rows[:-1]).all()  # in turn
    assert 0 < rows[0].sum() < 8  # and not all together
    # one unit is all it holds: on exactly when it was charged
    np.testing.assert_allclose(Battery(0.3, 1, 1, 1).probs(1), [0.3], atol=1e-6)


def test_a_budget_buys_as_many_of_the_cheapest_rounds_as_it_can():
    prices = np.random.default_rng(3).uniform(1, 5, (6, 3))
    table = Budget(prices, spend=[4.0, 9.0, 100.0]).recording(3)
    for i, spend in enumerate([4.0, 9.0, 100.0]):
        affordable = [k for k in range(7) for c in combinations(prices[:, i], k) if sum(c) <= spend]
        assert table[:, i].sum() == max(affordable)
        assert prices[table[:, i], i].sum() <= spend
    assert Budget(prices, rounds_each=[0, 2, 9]).recording().sum(axis=0).tolist() == [0, 2, 6]
    timed = Budget(prices, rounds_each=2)
    assert timed.probs(3).tolist() == pytest.approx([1 / 3] * 3)
    for i in range(3):
        assert {*np.flatnonzero(timed.recording(3)[:, i])} == {*np.argsort(prices[:, i])[:2]}
    first = list(islice(timed.rows(3, stream(0)), 12))
    np.testing.assert_array_equal(first[:6], first[6:])


def test_prices_are_read_from_a_file(tmp_path):
    prices = np.array([[3.5, 1.0], [2.0, 1.0]])
    np.savetxt(tmp_path / "carbon.csv", prices, delimiter=",")
    np.save(tmp_path / "carbon.npy", prices)
    for name in ("carbon.csv", "carbon.npy"):
        assert Budget(tmp_path / name, rounds_each=1).recording().tolist() == [[False, True], [True, False]]
    for arrays in ({}, {"carbon": prices, "other": prices}):
        np.savez(tmp_path / "several.npz", **arrays)
        with pytest.raises(BadInput, match=rf"several.npz must hold one array, got {len(arrays)}: "):
            Budget(tmp_path / "several.npz", rounds_each=1)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Battery(1.5), r"^harvest must be in \[0, 1\], one or one per client, got 1.5$"),
        (lambda: Battery(0.5, cost=11), "^charge must be from 1 to 1000, and cost from 1 to capacity"),
        (lambda: Budget([[1.0]]), "^a budget is either rounds_each or spend: give one of them$"),
        (lambda: Budget([[1.0]], -1), "^rounds_each must be at least 0, one or one per client, got -1$"),
        (lambda: Budget([[1.0]], spend=float("nan")), "^spend must be at least 0, one or one per client, got nan$"),
        (lambda: Budget([[-1.0]], 1), "^prices must be .* of at least 0, got shape"),
        (lambda: Budget([[1.0, 2.0], [3.0]], 1), "^prices must be .* of at least 0, got "),
        (lambda: Budget({"kind": "x"}, 1), "^prices must be .* of at least 0, got {.kind.: .x.}"),
        (lambda: Budget([[1.0]], 1.5), "^rounds_each must be whole numbers, got 1.5$"),
        (lambda: Budget([[1.0, 2.0]], 1).probs(3), "^3 clients need 3 columns of prices, got 2$"),
    ],
)
def test_what_cannot_be_used(make, sentence):
    with pytest.raises(BadInput, match=sentence):
        make()
