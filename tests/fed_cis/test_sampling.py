from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import BadInput
from fedstale.core.rng import stream
from fedstale.fed_cis.sampling import ExitSampling
from fedstale.participation import Bernoulli
from fedstale.testing import check_participation


def taken(sampling, rounds, seed=0):
    n = len(sampling.pairs())
    return np.array(list(islice(sampling.rows(n, stream(seed, "participation")), rounds)))


def test_pairs_and_probabilities_by_hand():
    sampling = ExitSampling([1, 2, 3], p=0.2)
    assert sampling.pairs().tolist() == [[0, 1], [1, 1], [1, 2], [2, 1], [2, 2], [2, 3]]
    assert sampling.probs(6) == pytest.approx([1, 0.2, 0.8, 0.2, 0.2, 0.6])


def test_without_help_every_node_trains_its_own_exit_in_every_round():
    sampling = ExitSampling([1, 2, 3])
    assert sampling.pairs().tolist() == [[0, 1], [1, 2], [2, 3]]
    assert sampling.probs(3).tolist() == [1, 1, 1]
    assert taken(sampling, 3).all()


def test_every_pair_may_have_a_probability_of_its_own():
    """The matrix p of Algorithm 6; node 2 is idle in a tenth of the rounds."""
    sampling = ExitSampling([1, 2, 3], p=[[1, 0, 0], [0.5, 0.5, 0], [0.3, 0, 0.6]])
    assert sampling.pairs().tolist() == [[0, 1], [1, 1], [1, 2], [2, 1], [2, 3]]
    assert sampling.probs(5) == pytest.approx([1, 0.5, 0.5, 0.3, 0.6])
    rows = taken(sampling, 4000)
    assert rows.mean(axis=0) == pytest.approx(sampling.probs(5), abs=0.04)
    assert rows[:, 0].all()
    assert (rows[:, 1] ^ rows[:, 2]).all()
    assert not (rows[:, 3] & rows[:, 4]).any()
    scalar = ExitSampling([1, 2, 3], 0.2)
    table = ExitSampling([1, 2, 3], [[1, 0, 0], [0.2, 0.8, 0], [0.2, 0.2, 0.6]])
    assert np.array_equal(taken(scalar, 50), taken(table, 50))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.floats(0, 0.33), st.integers(0, 99))
def test_probabilities_of_a_node_sum_to_one_and_it_trains_one_exit_a_round(exits, p, seed):
    sampling = ExitSampling(exits, p)
    node, _ = sampling.pairs().T
    assert np.bincount(node, sampling.probs(len(node))) == pytest.approx(np.ones(len(exits)), abs=1e-6)
    for row in taken(sampling, 20, seed):
        assert np.bincount(node, row).tolist() == [1] * len(exits)


@pytest.mark.parametrize(
    "sampling",
    [
        ExitSampling([1, 3], 0.2),
        ExitSampling([2, 3], 0.0),
        ExitSampling([1, 2], [[0.9, 0], [0.4, 0.5]]),
        ExitSampling([1, 3, 2], 0.3, Bernoulli([1, 0.3, 0.6])),
    ],
)
def test_it_keeps_the_contract(sampling):
    check_participation(sampling, n=len(sampling.pairs()))


def test_a_node_that_is_away_trains_nothing_and_the_draw_of_exits_stays():
    nodes = Bernoulli([0.5, 0.5, 1])
    some, everybody = ExitSampling([1, 3, 2], 0.3, nodes), ExitSampling([1, 3, 2], 0.3)
    node, _ = some.pairs().T
    there = np.array(list(islice(nodes.rows(3, stream(0, "participation")), 30)))
    assert np.array_equal(taken(some, 30), taken(everybody, 30) & there[:, node])
    assert some.probs(6) == pytest.approx(everybody.probs(6) * np.array([0.5, 0.5, 1])[node])


def test_the_exits_of_nodes_are_independent_of_who_is_there():
    sampling = ExitSampling([2], 0.5, Bernoulli(0.5))
    rows = taken(sampling, 4000)
    assert abs(rows[:, 0].mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 4000)
    assert abs(rows[:, 1].mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 4000)


@pytest.mark.parametrize(
    ("exits", "p", "sentence"),
    [
        ([0, 1], 0.0, "exits must be whole numbers of at least 1"),
        ([], 0.0, "exits must be whole numbers of at least 1"),
        ([1.5], 0.0, "exits must be whole numbers of at least 1"),
        ([1, 3], 0.5, "p must be at least 0 and below 1/2, .* got 0.5"),
        ([1, 3], -0.1, "p must be at least 0"),
        ([1, 3], float("nan"), "p must be at least 0"),
        ([1, 2], [0.1, 0.2], "p must be one number, or 2 × 2 probabilities"),
        ([1, 2], [[1, 0], [0.6, 0.5]], "with a sum of at most 1"),
        ([1, 2], [[0.5, 0.5], [0, 1]], "0 beyond the node's exit"),
        ([1, 2], [[0, 0], [0, 0]], "p must be one number"),
    ],
)
def test_impossible_settings_are_refused(exits, p, sentence):
    with pytest.raises(BadInput, match=sentence):
        ExitSampling(exits, p)


def test_another_number_of_clients_is_refused():
    with pytest.raises(BadInput, match="6 pairs of node and exit need as many clients, got 3"):
        ExitSampling([1, 2, 3], 0.2).probs(3)
    with pytest.raises(BadInput, match="6 pairs of node and exit need as many clients, got 3"):
        next(ExitSampling([1, 2, 3], 0.2).rows(3, stream(0, "x")))
