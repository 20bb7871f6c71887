"""On/off chains: stationary from the first round, correlated as they say, alone and in clusters."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import BadInput, Mask, Participation
from fedstale.core.rng import stream
from fedstale.participation.markov import ClusteredMarkov, Markov, MarkovClasses
from fedstale.testing import check_participation

PARTS = [
    Markov(0.3, 0.8),
    Markov([0.1, 0.9, 0.5, 0.5, 0, 1], [0.9, -0.1, -1, 0, 0.5, 0.5]),
    MarkovClasses(),
    ClusteredMarkov(3, [0.2, 0.5, 0.9], 0.5),
]


def first_rows(participation: Participation, rounds: int, n: int = 6, seed: int = 0) -> Mask:
    return np.array(list(islice(participation.rows(n, stream(seed, "participation")), rounds)))


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_the_battery(part: Participation) -> None:
    check_participation(part)


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_a_longer_horizon_extends_a_shorter_one(part: Participation) -> None:
    np.testing.assert_array_equal(first_rows(part, 10), first_rows(part, 30)[:10])
    assert not np.array_equal(first_rows(part, 30, seed=1), first_rows(part, 30, seed=2))


@pytest.mark.parametrize(("π", "λ"), [(0.1, 0.9), (0.9, 0.9), (0.5, 0.0), (0.3, -0.4), (0.9, -0.1)])
def test_rounds_follow_each_other_as_the_eigenvalue_says(π: float, λ: float) -> None:
    """Each transition is a coin of its own: the share of T of them is within 5 √(p(1-p)/T) of p."""
    rows = first_rows(Markov(π, λ), 300, n=1000)
    for before, p in ((True, λ + (1 - λ) * π), (False, (1 - λ) * π)):
        then = rows[1:][rows[:-1] == before]
        assert abs(then.mean() - p) < 5 * np.sqrt(p * (1 - p) / len(then)) + 1e-12
    x = rows - π
    correlations = [(x[k:] * x[: len(x) - k]).mean() / (π * (1 - π)) for k in (1, 2)]
    np.testing.assert_allclose(correlations, [λ, λ**2], atol=0.05)


def test_shares_of_a_long_run_are_the_availability() -> None:
    """The variance of the mean of T correlated rounds is π(1-π)/T · (1+λ)/(1-λ)."""
    π, λ, T = np.array([0.1, 0.9, 0.5, 0.3]), np.array([0.9, 0.8, -0.5, 0]), 20_000
    part = Markov(π, λ)
    off = np.abs(first_rows(part, T, n=4).mean(axis=0) - part.probs(4))
    assert (off < 4 * np.sqrt(π * (1 - π) / T * (1 + λ) / (1 - λ))).all()


def test_the_first_state_is_drawn_from_the_availability() -> None:
    n, π = 100_000, 0.1
    assert abs(first_rows(Markov(π, 0.99), 1, n=n).mean() - π) < 4 * np.sqrt(π * (1 - π) / n)


def test_without_memory_it_is_a_coin_and_with_all_of_it_nothing_moves() -> None:
    assert (first_rows(Markov(0.5, 1), 20) == first_rows(Markov(0.5, 1), 1)).all()
    turns = first_rows(Markov(0.5, -1), 20)
    assert (turns[1:] != turns[:-1]).all()


@given(st.floats(0, 1), st.floats(-1, 1))
def test_refused_are_exactly_the_impossible_chains(π: float, λ: float) -> None:
    stay, come = λ + (1 - λ) * π, (1 - λ) * π
    if stay >= 0 and come <= 1:
        Markov(π, λ)
    elif stay < -1e-9 or come > 1 + 1e-9:
        with pytest.raises(BadInput, match="imply"):
            Markov(π, λ)


def test_the_sentence_names_the_client_and_the_values() -> None:
    with pytest.raises(BadInput, match=r"client 1: availability 0.9 and eigenvalue -0.5 imply P\(on → on\) = 0.85"):
        Markov([0.5, 0.9], -0.5)
    with pytest.raises(
        BadInput, match=r"client 0: availability 0.1 and eigenvalue -0.5 .* which must be in \[0, 1\]"
    ):
        Markov(0.1, [-0.5, 0])
    with pytest.raises(BadInput, match=r"cluster 1: availability 0.9 and eigenvalue -0.5"):
        ClusteredMarkov(2, [0.5, 0.9], -0.5)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Markov(1.2, 0), r"client 0: availability must be in \[0, 1\], got 1.2"),
        (lambda: Markov([0.5, -1], 0), r"client 1: availability must be in \[0, 1\], got -1"),
        (lambda: Markov([], 0), r"availability must be one number or one per client, got shape \(0,\)"),
        (lambda: ClusteredMarkov(2, 0.5, [[0]]), r"eigenvalue must be one number or one per cluster, got shape"),
        (lambda: Markov(0.5, float("nan")), r"client 0: eigenvalue must be in \[-1, 1\], got nan"),
        (lambda: Markov([0.5, 0.5], [0, 0, 0]), "must be equally many, got 2 and 3"),
        (lambda: Markov([0.5, 0.5], 0).probs(3), "3 clients need 3 availabilities, got 2"),
        (lambda: Markov(0.5, [0, 0]).mixing(3), "3 clients need 3 eigenvalues, got 2"),
        (lambda: MarkovClasses(g=0.6), r"g must be in \[0, 0.5\], got 0.6"),
        (lambda: MarkovClasses(nu=1.1), r"nu must be in \[0, 1\], got 1.1"),
        (lambda: MarkovClasses(eps=-1), "eps must be at least 0, got -1"),
        (lambda: MarkovClasses(seed=-1), "seed must be at least 0, got -1"),
        (lambda: MarkovClasses(eps=0.2).probs(100), "client 33: .* imply"),
        (lambda: ClusteredMarkov(0, 0.5, 0), "clusters must be from 1 to 10000000, got 0"),
        (
            lambda: ClusteredMarkov(3, [0.5, 0.5], 0),
            "availability must be one number or one for each of 3 clusters",
        ),
        (lambda: ClusteredMarkov(2, 0.5, 0, [0, 2]), r"members must be one group number in 0 … 1 per client"),
        (lambda: ClusteredMarkov(2, 0.5, 0, [0.5]), r"members must be one group number in 0 … 1 per client"),
        (lambda: ClusteredMarkov(2, 0.5, 0, [0, 1]).probs(3), "3 clients need 3 members, got 2"),
    ],
)
def test_settings_are_checked(make: object, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        make()  # type: ignore[operator]


def test_a_hair_of_rounding_is_forgiven() -> None:
    part = Markov(0.9, 1 - 1 / 0.9 - 1e-15)
    assert first_rows(part, 50, n=50).any()


def test_the_classes_of_the_experiments() -> None:
    part = MarkovClasses()
    π, λ = part.probs(100), part.mixing(100)
    np.testing.assert_allclose(π, [0.9] * 50 + [0.1] * 50, rtol=1e-6)
    correlated = np.tile(np.repeat([True, False], 25), 2)
    np.testing.assert_array_equal(λ[correlated], 0.9)
    weak = λ[~correlated]
    assert 0.006 < weak.std() < 0.014  # 0.01 ± 4 standard errors, 0.01 / √(2·50)
    np.testing.assert_array_equal(λ, part.mixing(100))
    assert not np.array_equal(weak, MarkovClasses(seed=1).mixing(100)[~correlated])
    assert 1 / ((1 - λ) * π).min() == pytest.approx(100, rel=1e-6)  # the slowest chain comes every 100 rounds


def test_a_cluster_comes_and_goes_as_one_and_clusters_do_not() -> None:
    part = ClusteredMarkov(3, [0.5, 0.5, 0.9], [0.5, 0, 0.5])
    rows = first_rows(part, 4000, n=7)
    block = np.array([0, 0, 0, 1, 1, 2, 2])
    for c in range(3):
        members = rows[:, block == c]
        assert (members == members[:, :1]).all()
    assert abs(np.corrcoef(rows[:, 0], rows[:, 3])[0, 1]) < 4 * np.sqrt(1 / 4000)
    np.testing.assert_array_equal(part.probs(7), np.array([0.5, 0.5, 0.9], np.float32)[block])
    np.testing.assert_array_equal(part.mixing(7), np.array([0.5, 0, 0.5])[block])


def test_members_say_who_belongs_to_which_cluster() -> None:
    part = ClusteredMarkov(2, [0.2, 0.7], 0.5, [1, 0, 1, 0])
    rows = first_rows(part, 200, n=4)
    assert (rows[:, 0] == rows[:, 2]).all()
    assert (rows[:, 1] == rows[:, 3]).all()
    np.testing.assert_array_equal(part.probs(4), np.float32([0.7, 0.2, 0.7, 0.2]))


def test_a_row_is_the_callers() -> None:
    """To write in a row changes no later one."""
    rows = Markov(0.5, 0.9).rows(50, stream(0, "participation"))
    for _ in range(20):
        next(rows)[:] = False
    np.testing.assert_array_equal(next(rows), first_rows(Markov(0.5, 0.9), 21, n=50)[20])


def test_settings_cannot_be_changed_from_outside() -> None:
    given = np.array([0.5, 0.5])
    part = Markov(given, given)
    given[:] = 0
    np.testing.assert_array_equal(part.probs(2), [0.5, 0.5])
    with pytest.raises(ValueError, match="read-only"):
        part.availability[0] = 1  # type: ignore[index]
    part.mixing(2)[:] = 0
    np.testing.assert_array_equal(part.mixing(2), [0.5, 0.5])
    assert part == Markov([0.5, 0.5], [0.5, 0.5])
    assert hash(part) == hash(Markov([0.5, 0.5], [0.5, 0.5]))
