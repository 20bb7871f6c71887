"""Independent coins: marginals, horizons, seeds."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import BadInput, Mask, Participation
from fedstale.core.rng import stream
from fedstale.participation import Bernoulli, TwoGroups

probabilities = st.floats(0, 1, width=32)
processes = st.one_of(
    st.builds(Bernoulli, probabilities),
    st.builds(Bernoulli, st.lists(probabilities, min_size=5, max_size=5)),
    st.builds(TwoGroups, probabilities),
)


def first_rows(participation: Participation, rounds: int, n: int = 5, seed: int = 0) -> Mask:
    return np.array(list(islice(participation.rows(n, stream(seed, "participation")), rounds)))


@given(processes, st.integers(1, 10), st.integers(1, 10), st.integers(0, 1000))
def test_a_longer_horizon_extends_a_shorter_one(p: Participation, short: int, more: int, seed: int) -> None:
    rows = first_rows(p, short + more, seed=seed)
    np.testing.assert_array_equal(first_rows(p, short, seed=seed), rows[:short])


@pytest.mark.parametrize(
    "participation", [Bernoulli(0.3), Bernoulli([0, 0.01, 0.2, 0.5, 1]), TwoGroups(0.05), TwoGroups(0)]
)
def test_marginals_are_the_shares_of_a_long_sample(participation: Participation) -> None:
    T, p = 20_000, participation.probs(5).astype(np.float64)
    shares = first_rows(participation, T).mean(axis=0)
    assert (np.abs(shares - p) <= 4 * np.sqrt(p * (1 - p) / T)).all()  # exact where p is 0 or 1


@pytest.mark.parametrize("participation", [Bernoulli(0.5), TwoGroups(0.5)])
def test_clients_and_rounds_are_independent(participation: Participation) -> None:
    T = 10_000
    coins = first_rows(participation, T)[:, 3:].astype(float)
    pairs = [(coins[:, 0], coins[:, 1]), (coins[:-1, 0], coins[1:, 0])]
    for x, y in pairs:
        assert abs(np.corrcoef(x, y)[0, 1]) < 4 / np.sqrt(T)


def test_other_seeds_give_other_rows() -> None:
    assert not np.array_equal(first_rows(Bernoulli(0.5), 50, seed=1), first_rows(Bernoulli(0.5), 50, seed=2))


@pytest.mark.parametrize(("n", "wanted"), [(4, [1, 1, 0.25, 0.25]), (5, [1, 1, 1, 0.25, 0.25]), (1, [1])])
def test_the_second_half_is_rare(n: int, wanted: list[float]) -> None:
    np.testing.assert_array_equal(TwoGroups(0.25).probs(n), wanted)
    always = np.array(wanted) == 1
    assert first_rows(TwoGroups(0.25), 200, n)[:, always].all()


@pytest.mark.parametrize("p", [1.5, -0.1, float("nan"), [], [0.5, 2], [[0.5]]])
def test_probabilities_are_checked(p: object) -> None:
    with pytest.raises(BadInput, match=r"p must be in \[0, 1\]"):
        Bernoulli(p)


def test_as_many_probabilities_as_clients() -> None:
    with pytest.raises(BadInput, match="5 clients need 5 probabilities, got 2"):
        Bernoulli([0.5, 0.5]).probs(5)
    with pytest.raises(BadInput, match="5 clients need 5 probabilities, got 2"):
        next(Bernoulli([0.5, 0.5]).rows(5, stream(0)))


@pytest.mark.parametrize("p_min", [-0.1, 1.1, float("nan")])
def test_p_min_is_checked(p_min: float) -> None:
    with pytest.raises(BadInput, match=r"p_min must be in \[0, 1\], got"):
        TwoGroups(p_min)


def test_settings_cannot_be_changed_through_the_list_given() -> None:
    given = np.array([0.5, 0.5])
    participation = Bernoulli(given)
    given[:] = 0
    np.testing.assert_array_equal(participation.probs(2), [0.5, 0.5])
    with pytest.raises(ValueError, match="read-only"):
        participation.p[0] = 1
