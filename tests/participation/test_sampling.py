"""Some of the available: how many, whose, how often, and the exact marginals against enumeration."""

from collections.abc import Iterator
from itertools import combinations, islice, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import BadInput, Mask, Participation, part
from fedstale.core.rng import stream
from fedstale.participation import Bernoulli, Trace, TwoGroups
from fedstale.participation.bernoulli import LabelTied
from fedstale.participation.cyclic import Cyclic
from fedstale.participation.diurnal import Diurnal
from fedstale.participation.events import Events, Grid
from fedstale.participation.groups import Kind, independent
from fedstale.participation.marginals import kept
from fedstale.participation.markov import ClusteredMarkov, Markov, MarkovClasses
from fedstale.participation.sampling import RegularisedSampling, Sampling
from fedstale.testing import check_participation

TABLE = np.array([[1, 1, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0]])
BASES = [
    Bernoulli([0.1, 0.9, 0.5, 0.5, 1, 0]),
    TwoGroups(0.3),
    Markov(0.5, 0.3),
    MarkovClasses(nu=0.5),
    ClusteredMarkov(3, [0.2, 0.5, 0.9], 0.3),
    Cyclic(groups=3, on=3, off=4),
    Diurnal(0.5, 0.4, rounds_per_day=5, clusters=2),
    LabelTied([[1, 2], [3, 0], [0, 1], [1, 1], [5, 1], [1, 0]], mean=0.5),
    Trace(TABLE),
    Grid(TABLE),
    Events([(c, "", t, "AVL_TRAIN" if TABLE[t, c] else "UN_AVL") for c in range(6) for t in range(4)], None, 1.0),
]


@part
class Pairs:
    """A user's part that lists no kinds of round: one of three pairs of clients, at random."""

    def probs(self, n: int) -> np.ndarray:
        return np.full(n, 1 / 3, np.float32)

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        while True:
            yield np.arange(6) // 2 == rng.integers(3)


def first_rows(participation: Participation, rounds: int, n: int = 6, seed: int = 0) -> Mask:
    return np.array(list(islice(participation.rows(n, stream(seed, "participation")), rounds)))


@pytest.mark.parametrize("sampling", [Sampling, RegularisedSampling])
@pytest.mark.parametrize("base", [*BASES, Pairs()], ids=lambda base: type(base).__name__)
class TestAnyBase:
    def test_the_battery(self, sampling: type, base: Participation) -> None:
        check_participation(sampling(base, 2, draws=5000))

    def test_as_many_as_can_be_of_those_the_base_draws_alone(self, sampling: type, base: Participation) -> None:
        available, chosen = first_rows(base, 200), first_rows(sampling(base, 2), 200)
        assert (chosen <= available).all()
        np.testing.assert_array_equal(chosen.sum(axis=1), np.minimum(2, available.sum(axis=1)))
        np.testing.assert_array_equal(first_rows(sampling(base, 6), 200), available)

    def test_a_longer_horizon_extends_a_shorter_one(self, sampling: type, base: Participation) -> None:
        np.testing.assert_array_equal(first_rows(sampling(base, 2), 7), first_rows(sampling(base, 2), 40)[:7])


def enumerated(p: list[float], size: list[int], at_most: int) -> np.ndarray:
    """(c,) the chance that a given client of unit c is chosen, over all 2^c ways to come."""
    chance = np.zeros(len(p))
    for there in product([0, 1], repeat=len(p)):
        weight = np.prod([q if x else 1 - q for q, x in zip(p, there, strict=True)])
        available = sum(s for s, x in zip(size, there, strict=True) if x)
        chance += weight * np.array(there) * min(1, at_most / max(available, 1))
    return chance


probabilities = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0, 1e-6]))


@given(st.lists(st.tuples(probabilities, st.integers(1, 5)), min_size=1, max_size=8), st.integers(1, 12))
def test_marginals_of_independent_units_are_exact(units: list[tuple[float, int]], at_most: int) -> None:
    p, size = [q for q, _ in units], [s for _, s in units]
    together = Kind(1.0, np.array(p), np.repeat(np.arange(len(p)), size), together=True)
    np.testing.assert_allclose(p * kept(together, at_most), enumerated(p, size, at_most), rtol=1e-12, atol=1e-15)
    alone = independent(p)
    got = (alone.p * kept(alone, at_most))[alone.group]
    np.testing.assert_allclose(got, enumerated(p, [1] * len(p), at_most), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("n", [300, 3000])
def test_marginals_of_many_clients_against_dynamic_programming(n: int) -> None:
    """Only a window of the distribution and a few frequencies are used then."""
    p, at_most = np.sort(stream(0, "p").random(n)) * 0.3, n // 8
    got = kept(independent(p), at_most)
    for i in (0, n // 2, n - 1):
        law = np.r_[1.0, np.zeros(n)]  # of how many others are there
        for q in np.delete(p, i):
            law[1:] = law[1:] * (1 - q) + law[:-1] * q
            law[0] *= 1 - q
        assert got[i] == pytest.approx(law @ np.minimum(1, at_most / np.arange(1, n + 2)), rel=1e-12)


@pytest.mark.parametrize("base", BASES, ids=lambda base: type(base).__name__)
def test_exact_marginals_against_a_long_sample(base: Participation) -> None:
    """Batch means allow for rounds that depend on each other; 20,160 rounds are whole cycles of all."""
    T = 20_160
    rows, p = first_rows(Sampling(base, 2), T), Sampling(base, 2, draws=1).probs(6)
    batches = rows.reshape(48, -1, 6).mean(axis=1)
    error = np.maximum(batches.std(axis=0) / np.sqrt(48), np.sqrt(p * (1 - p) / T))
    assert (np.abs(rows.mean(axis=0) - p) < 4.5 * error + 1e-12).all()


def test_marginals_by_hand() -> None:
    np.testing.assert_allclose(Sampling(Bernoulli(1.0), 10).probs(250), 10 / 250)
    np.testing.assert_allclose(Sampling(Cyclic(), 10).probs(250), 0.2 * 10 / 50)
    np.testing.assert_allclose(
        RegularisedSampling(Cyclic(), 10, draws=1).probs(250), 0.2 * 10 / 50
    )  # none is drawn
    np.testing.assert_allclose(Sampling(Trace(TABLE), 2).probs(6)[1], (2 / 4 + 2 / 6 + 1) / 4, rtol=1e-6)
    np.testing.assert_allclose(Sampling(Bernoulli(0.5), 1).probs(2), 0.5 * 0.5 + 0.5 * 0.5 / 2)
    one = Sampling(Bernoulli(np.linspace(0, 1, 1000)), 20).probs(1000)
    assert one.sum() == pytest.approx(20, rel=1e-5)  # there are always more than 20


def test_a_base_that_lists_nothing_is_counted() -> None:
    """Of a pair one is chosen: 1/6 each, with a standard error below √(p/draws)."""
    got = Sampling(Pairs(), 1, draws=4000).probs(6)
    assert (np.abs(got - 1 / 6) < 4 * np.sqrt(1 / 6 / 4000)).all()
    np.testing.assert_array_equal(got[::2], got[1::2])  # given the row, the chance is known
    np.testing.assert_array_equal(got, Sampling(Pairs(), 1, draws=4000).probs(6))


def test_choices_are_uniform_and_independent_of_each_other() -> None:
    """Each of the 10 pairs of 5 clients is a tenth of the rounds."""
    T = 20_000
    rows = first_rows(Sampling(Bernoulli(1.0), 2), T, n=5).astype(float)
    pairs = (rows.T @ rows / T)[np.triu_indices(5, 1)]
    assert (np.abs(pairs - 0.1) < 4.5 * np.sqrt(0.1 * 0.9 / T)).all()
    assert abs(np.corrcoef(rows[1:, 0], rows[:-1, 0])[0, 1]) < 4 / np.sqrt(T)


def test_a_sampling_of_a_sampling_draws_from_a_stream_of_its_own() -> None:
    """2 of 4, then 1 of those: either of each pair half of the time, which a shared stream does not give."""
    base = Sampling(Bernoulli(1.0), 2)
    inner = np.array([first_rows(base, 1, n=4, seed=seed)[0] for seed in range(3000)])
    outer = np.array([first_rows(Sampling(base, 1), 1, n=4, seed=seed)[0] for seed in range(3000)])
    assert (outer <= inner).all()
    for i, j in combinations(range(4), 2):
        pair = inner[:, i] & inner[:, j]
        assert abs(outer[pair, i].mean() - 0.5) < 4.5 * np.sqrt(0.25 / pair.sum())


def test_everybody_once_before_anybody_twice() -> None:
    """10 of 25 always there: after every round nobody is more than one turn ahead, in ever new orders."""
    rows = first_rows(RegularisedSampling(Bernoulli(1.0), 10), 100, n=25)
    turns = rows.cumsum(axis=0)
    assert (turns.max(axis=1) - turns.min(axis=1) <= 1).all()
    assert (turns[4::5] == 2 * np.arange(1, 21)[:, None]).all()  # 5 rounds are 2 walks
    walks = {tuple(np.flatnonzero(row)) for row in rows[::5]}
    assert len(walks) > 15


def test_the_papers_setting_is_regularised_within_every_cycle() -> None:
    """10 of the 50 that are there for 100 rounds: 20 turns each, in each cycle of 500 rounds."""
    rows = first_rows(RegularisedSampling(Cyclic(), 10), 1000, n=250)
    np.testing.assert_array_equal(rows[:500].sum(axis=0), 20)
    np.testing.assert_array_equal(rows[500:].sum(axis=0), 20)


def test_who_was_away_catches_up() -> None:
    there = np.ones((12, 3), int)
    there[:6, 0] = 0
    rows = first_rows(RegularisedSampling(Trace(there), 1), 12, n=3)
    np.testing.assert_array_equal(rows[:6].sum(axis=0), [0, 3, 3])
    assert rows[6:9, 0].all()
    np.testing.assert_array_equal(rows.sum(axis=0), [4, 4, 4])


def test_regularised_marginals_are_counted_where_company_changes() -> None:
    """One of two: client 0 is always there, client 1 every other round, so both get half of the turns."""
    part = RegularisedSampling(Trace([[1, 1], [1, 0]]), 1, draws=1000)
    np.testing.assert_allclose(part.probs(2), [0.5, 0.5], atol=0.002)
    circle = RegularisedSampling(Trace([[1, 1, 0], [0, 0, 1], [0, 1, 1]]), 1, draws=3000)
    np.testing.assert_allclose(circle.probs(3), 1 / 3, atol=0.002)
    uniform = Sampling(Trace([[1, 1], [1, 0]]), 1).probs(2)
    np.testing.assert_allclose(uniform, [0.75, 0.25])


@pytest.mark.parametrize("sampling", [Sampling, RegularisedSampling])
def test_settings_are_checked(sampling: type) -> None:
    with pytest.raises(BadInput, match="size must be at least 1, got 0"):
        sampling(Bernoulli(0.5), 0)
    with pytest.raises(BadInput, match="draws must be at least 1, got 0"):
        sampling(Bernoulli(0.5), 1, draws=0)
    with pytest.raises(BadInput, match="3 clients need 3 probabilities, got 2"):
        sampling(Bernoulli([0.5, 0.5]), 1).probs(3)
    assert sampling(Bernoulli([0.5, 1]), 1) == sampling(Bernoulli([0.5, 1]), 1)
    assert sampling(Bernoulli([0.5, 1]), 1) != sampling(Bernoulli([0.5, 0]), 1)


def test_where_just_enough_are_there_nothing_is_drawn() -> None:
    rng = np.random.default_rng(1)
    spent = np.random.default_rng(1)
    rows = Sampling(Trace(np.array([[1, 1, 0], [1, 1, 1]] * 3)), 2).rows(3, rng)
    seen = [next(rows).tolist() for _ in range(6)]
    other = Sampling(Trace(np.array([[1, 0, 0], [1, 1, 1]] * 3)), 2).rows(3, spent)
    fewer = [next(other).tolist() for _ in range(6)]
    assert seen[0::2] == [[True, True, False]] * 3
    assert seen[1::2] == fewer[1::2], "the draws of the other rounds are the same whoever is there in between"


@pytest.mark.parametrize("base", [*BASES, Bernoulli(1.0)], ids=lambda base: type(base).__name__)
def test_clients_are_listed_as_the_rows_have_them_with_the_draws_of_a_choice_among_the_available(base):
    """Where everybody is always available nobody looks at them all, and the draws stay what they were."""
    sampling, draws = Sampling(base, 2), stream(3, "participation")
    own = np.random.Generator(draws.bit_generator.jumped(1))  # type: ignore[attr-defined]
    rows, lists = (
        sampling.rows(6, stream(3, "participation")),
        sampling.present_clients(6, stream(3, "participation")),
    )
    for row, listed, available in islice(zip(rows, lists, base.rows(6, draws), strict=False), 20):
        there = np.flatnonzero(available)
        due = there if len(there) <= 2 else np.sort(own.choice(there, 2, replace=False, shuffle=False))
        assert listed.tolist() == due.tolist() == np.flatnonzero(row).tolist()


def test_a_round_among_many_clients_draws_only_those_it_takes(monkeypatch):
    monkeypatch.setattr(Bernoulli, "rows", None)  # it would draw a number for each of them
    listed = next(Sampling(Bernoulli(1.0), 100).present_clients(10**7, stream(0, "participation")))
    assert len(listed) == 100
    assert (np.diff(listed) > 0).all()
