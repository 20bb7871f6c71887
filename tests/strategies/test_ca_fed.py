"""CA-Fed against Algorithm 3 as it is printed, O(n²) and all, and against numbers worked by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedstale.core import Availability, BadInput, Ids, Local, State
from fedstale.engines.serial import Serial
from fedstale.participation import Bernoulli
from fedstale.participation.estimators import Intervals, Known
from fedstale.participation.markov import Markov
from fedstale.simulate import simulate
from fedstale.strategies import Unbiased
from fedstale.strategies.ca_fed import CAFed
from fedstale.tasks.quadratic import Quadratic
from fedstale.testing import check_strategy


def asked(clients: Any, losses: Any, weights: Any, probs: Any, mixing: Any, t: int = 1) -> Availability:
    def floats(x: Any) -> Any:
        return np.array(x, np.float32)

    return Availability(
        t, np.array(clients, np.int64), floats(losses), floats(weights), floats(probs), floats(mixing)
    )


def error(q: list[float], π: list[float], α: list[float], gaps: list[float], κ2: float) -> float:
    """Eq. (2.25)."""
    mass = sum(p * x for p, x in zip(π, q, strict=True))
    b = [p * x / mass for p, x in zip(π, q, strict=True)]
    variation = 0.5 * sum(abs(x - y) for x, y in zip(α, b, strict=True))
    return sum(x * g for x, g in zip(b, gaps, strict=True)) + 4 * κ2 * variation**2 * max(gaps)


def compute_weights(
    q: list[float], order: list[int], π: Any, α: Any, gaps: list[float], κ2: float, τ: float
) -> list[float]:
    """Lines 13 to 22 of Algorithm 3; a fall below 1e-9 of ε is rounding, and the last one stays."""
    ε = error(q, π, α, gaps, κ2)
    for i in order:
        without = [0.0 if j == i else x for j, x in enumerate(q)]
        if q[i] == 0 or not any(without):
            continue
        fall = ε - error(without, π, α, gaps, κ2)
        if fall >= τ and fall > 1e-9 * ε:
            ε, q = ε - fall, without
    return q


def decided(
    a: Availability, reported: list[list[float]], κ2: float, τ: float, optimum: float | None, magnitude: bool
) -> list[int]:
    """Who trains, from every F̂_i so far; the thesis sorts by λ, the released code by its magnitude."""
    n = len(a.weights)
    α = [float(x) / float(a.weights.sum(dtype=np.float64)) for x in a.weights]
    π, λ = [float(x) for x in a.probs], [float(x) for x in a.mixing]
    gaps = [r[-1] - min(r if optimum is None else [*r, optimum]) for r in reported] if any(reported) else [0.0] * n
    q = [x / p for x, p in zip(α, π, strict=True)]
    q = compute_weights(
        q, sorted(range(n), key=lambda i: (-abs(λ[i]) if magnitude else -λ[i], π[i])), π, α, gaps, κ2, τ
    )
    q = compute_weights(q, sorted(range(n), key=lambda i: π[i]), π, α, gaps, κ2, τ)
    return [i for i in a.clients.tolist() if q[i] > 0]


@example(
    n=6, κ2=0.0, τ=0.0, optimum=None, magnitude=True, β=1.0, seed=0
)  # the sums leave 1e-17 where nothing is left
@given(
    n=st.integers(1, 12),
    κ2=st.sampled_from([0.0, 0.03, 0.3, 1.0, 10.0]),
    τ=st.sampled_from([0.0, 0.01, 0.1]),
    optimum=st.sampled_from([None, 0.0, 0.4]),
    magnitude=st.booleans(),
    β=st.sampled_from([1.0, 0.5, 0.001]),
    seed=st.integers(0, 2**32),
)
def test_it_decides_as_algorithm_3_does(
    n: int, κ2: float, τ: float, optimum: float | None, magnitude: bool, β: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    weights, probs = rng.dirichlet(np.ones(n)), rng.uniform(0.1, 1, n)
    mixing = np.round(rng.uniform(-0.5, 0.9, n), 1)  # with ties
    strategy = CAFed(κ2, τ, optimum, magnitude, β)
    state, reported = strategy.init(n, 1), [[] for _ in range(n)]
    for t in range(1, 6):
        clients = np.flatnonzero(rng.random(n) < (0.5 if t < 5 else 1.0))
        a = asked(clients, rng.uniform(0.2, 2, len(clients)), weights, probs, mixing, t)
        if len(clients) and not any(reported):  # F̂(0) of those who are not there yet
            reported = [[] if i in clients else [float(a.losses.mean(dtype=float))] for i in range(n)]
        for i, loss in zip(clients, a.losses, strict=True):
            before = reported[i][-1:] or [float(loss)]
            reported[i].append(before[0] * (1 - β) + float(loss) * β)  # (2.22)
        chosen, state = strategy.select(state, a)
        assert chosen.tolist() == decided(a, reported, κ2, τ, optimum, magnitude)
    assert len(chosen) > 0  # everybody was there, and never is everybody left out


# Six clients, a = (.1 .1 .2 .2 .2 .2), F̂ - F̂* = (4 1 2 1 1 3) and κ̄² = 0.1, so that with A the weight of the kept
# and G = Σ a_i (F̂_i - F̂_i*) over them, ε = G / A + 4·0.1·4 (1 - A)² = G / A + 1.6 (1 - A)².
#   all          A = 1   G = 1.9   ε = 1.9
# by λ: 0 1 2 5 3 4
#   without 0    A = .9  G = 1.5   ε = 1.6667 + .016 = 1.6827   falls: left out
#   and 1        A = .8  G = 1.4   ε = 1.75   + .064 = 1.814    kept
#   and 2        A = .7  G = 1.1   ε = 1.5714 + .144 = 1.7154   kept
#   and 5        A = .7  G = 0.9   ε = 1.2857 + .144 = 1.4297   left out
#   and 3 or 4   A = .5  G = 0.7   ε = 1.4    + .4   = 1.8      kept
# by p: 2 1 3 4 (0 and 5 are gone)
#   and 2        A = .5  G = 0.5   ε = 1      + .4   = 1.4      falls by .0297: left out, unless τ is more
#   and 1        A = .4  G = 0.4   ε = 1      + .576 = 1.576    kept
#   and 3 or 4   A = .3  G = 0.3   ε = 1      + .784 = 1.784    kept
SIX = {
    "weights": [0.1, 0.1, 0.2, 0.2, 0.2, 0.2],
    "probs": [0.4, 0.3, 0.2, 0.5, 0.6, 0.7],
    "mixing": [0.9, 0.8, 0.5, 0.2, 0.1, 0.3],
}
GAPS = [4.0, 1.0, 2.0, 1.0, 1.0, 3.0]


@pytest.mark.parametrize(("tau", "kept"), [(0.0, [1, 3, 4]), (0.0296, [1, 3, 4]), (0.0298, [1, 2, 3, 4])])
def test_six_clients_by_hand(tau: float, kept: list[int]) -> None:
    strategy = CAFed(kappa2=0.1, tau=tau, optimum=0.0)
    chosen, state = strategy.select(strategy.init(6, 1), asked(range(6), GAPS, **SIX))
    assert chosen.tolist() == kept
    chosen, state = strategy.select(state, asked([0, 2, 3], [4.0, 2.0, 1.0], **SIX))  # the others as last reported
    assert chosen.tolist() == [i for i in kept if i in (0, 2, 3)]


def test_weights_that_do_not_sum_to_one_count_by_their_shares() -> None:
    clients, losses, probs = range(4), [1.0, 1.2, 3.0, 9.0], [0.5, 0.4, 0.3, 0.1]
    for whole in (1.0, 0.01, 100.0):
        weights = [0.4 * whole, 0.3 * whole, 0.2 * whole, 0.1 * whole]
        a = asked(clients, losses, weights, probs, [0.1, 0.2, 0.3, 0.4])
        kept, _ = CAFed(kappa2=2.0, optimum=0.0).select(CAFed(kappa2=2.0, optimum=0.0).init(4, 2), a)
        assert kept.tolist() == [0, 1, 2], whole


def test_three_clients_by_hand() -> None:
    # gaps (3, 3, 0), a third each, κ̄² = 0.2: without one of the first two, ε falls from 2 to 3/2 + 2.4/9 = 1.767;
    # without both it is 2.4·4/9 = 1.067, so both go; but with κ̄² = 0.5, from 2 to 1.5 + 6/9 = 2.17: none goes
    def kept(κ2: float, gaps: list[float], mixing: list[float]) -> list[int]:
        strategy = CAFed(kappa2=κ2, optimum=0.0)
        a = asked(range(3), gaps, [1 / 3] * 3, [0.5] * 3, mixing)
        return strategy.select(strategy.init(3, 1), a)[0].tolist()

    assert kept(0.2, [3, 3, 0], [0, 0, 0]) == [2]
    assert kept(0.5, [3, 3, 0], [0, 0, 0]) == [0, 1, 2]
    # gaps (3, 2, 1), κ̄² = 0.1: from 2; without 1 first 2 + 1.2/9 = 2.13, so 1 stays and 0 goes (1.5 + .13), then in
    # pass 2 without 1 too: 1 + 1.2·4/9 = 1.533 < 1.633. With 0 first the same clients stay.
    assert kept(0.1, [3, 2, 1], [0, 0.9, 0]) == kept(0.1, [3, 2, 1], [0.9, 0, 0]) == [2]


def test_reports_are_filtered_by_hand_and_the_newest_alone_counts_at_one() -> None:
    shared: dict[str, Any] = {"weights": [0.5, 0.5], "probs": [1, 1], "mixing": [0, 0]}
    for β, latest, lowest in ((1.0, [2, 4], [2, 3]), (0.25, [5, 3.25], [5, 3])):
        strategy = CAFed(beta=β)
        state = strategy.init(2, 1)
        for clients, losses in (([0, 1], [6, 3]), ([0], [2]), ([1], [4])):
            _, state = strategy.select(state, asked(clients, losses, **shared))
        assert (state.latest.tolist(), state.lowest.tolist()) == (latest, lowest)
    for β in (0.0, 1.5, float("nan")):
        with pytest.raises(BadInput, match=r"^beta must be in \(0, 1\]"):
            CAFed(beta=β)


def test_of_two_that_are_alike_the_more_correlated_goes_first() -> None:
    # gaps (2, 2, 1, 1), a quarter each, κ̄² = 0.18, Γ = 1.44: all 1.5; without one of the first 4/3 + .09 = 1.423;
    # without both 1 + .36 = 1.36 would still fall, so τ = 0.07 keeps the second
    strategy = CAFed(kappa2=0.18, tau=0.07, optimum=0.0)
    for mixing, gone in (([0.9, 0.1, 0, 0], 0), ([0.1, 0.9, 0, 0], 1), ([0.5, 0.5, 0, 0], 0)):
        a = asked(range(4), [2, 2, 1, 1], [0.25] * 4, [0.5] * 4, mixing)
        chosen, _ = strategy.select(strategy.init(4, 1), a)
        assert chosen.tolist() == [i for i in range(4) if i != gone]
    for mixing, gone in (([0.0] * 4, 1), ([0.1, 0, 0, 0], 0), ([-0.5, 0.2, 0, 0], 0), ([-0.1, 0.2, 0, 0], 1)):
        a = asked(
            range(4), [2, 2, 1, 1], [0.25] * 4, [0.5, 0.4, 0.9, 0.9], mixing
        )  # |λ| before p, and p among equals
        assert strategy.select(strategy.init(4, 1), a)[0].tolist() == [i for i in range(4) if i != gone]


def test_the_first_pass_goes_by_magnitude_or_by_sign() -> None:
    a = asked(range(4), [2, 2, 1, 1], [0.25] * 4, [0.5, 0.4, 0.9, 0.9], [-0.5, 0.2, 0, 0])
    for magnitude, gone in ((True, 0), (False, 1)):
        strategy = CAFed(kappa2=0.18, tau=0.07, optimum=0.0, by_magnitude=magnitude)
        assert strategy.select(strategy.init(4, 1), a)[0].tolist() == [i for i in range(4) if i != gone]


def test_of_those_that_are_equally_correlated_the_rare_ones_go_first() -> None:
    # 25 clients often there and 25 seldom, all with λ = 0.9, one of each pair with a loss of 2, the others with 1
    n, seldom = 50, np.arange(50) >= 25
    strategy = CAFed(kappa2=1.0, optimum=0.0)
    a = asked(range(n), np.where(np.arange(n) % 2 == 0, 2, 1), [1 / n] * n, np.where(seldom, 0.1, 0.9), [0.9] * n)
    gone = np.setdiff1d(np.arange(n), strategy.select(strategy.init(n, 1), a)[0])
    assert len(gone) > 0
    assert seldom[gone].all()


def test_what_is_reported_is_remembered_also_of_those_left_out() -> None:
    strategy = CAFed(kappa2=0.1)
    shared: dict[str, Any] = {"weights": [0.5, 0.25, 0.25], "probs": [1, 1, 1], "mixing": [0, 0, 0.9]}
    start = strategy.init(3, 1)
    chosen, state = strategy.select(start, asked([0, 1, 2], [3, 2, 1], **shared))
    assert chosen.tolist() == [0, 1, 2]  # all gaps are 0: ε cannot fall
    chosen, state = strategy.select(state, asked([0, 2], [2, 7], **shared, t=2))
    assert chosen.tolist() == [0]  # gaps (0, 0, 6): ε falls from 6/4 to 2.4/16 without client 2
    assert tuple(x.tolist() for x in state) == ([2, 2, 7], [2, 2, 1], [False, False, True])
    before = state
    chosen, state = strategy.select(state, asked([2], [1.5], **shared, t=3))
    assert tuple(x.tolist() for x in state[:2]) == ([2, 2, 1.5], [2, 2, 1])
    assert before[0].tolist() == [2, 2, 7]  # a state that was handed over is not written to


def test_who_has_not_reported_counts_as_the_mean_of_the_first_and_a_broken_loss_is_no_report() -> None:
    strategy = CAFed(optimum=1.0)
    shared: dict[str, Any] = {"weights": [0.25] * 4, "probs": [1] * 4, "mixing": [0.0] * 4}
    start = strategy.init(4, 1)
    for nobody in (asked([], [], **shared), asked([1, 2], [np.nan, np.inf], **shared)):
        chosen, state = strategy.select(start, nobody)
        assert chosen.tolist() == nobody.clients.tolist()
        assert all(x.tobytes() == y.tobytes() for x, y in zip(state, start, strict=True))
    _, state = strategy.select(state, asked([0, 1, 2], [2, np.nan, 4], **shared))
    assert state[0].tolist() == [2, 3, 4, 3]
    _, state = strategy.select(state, asked([1, 2], [0.5, np.inf], **shared, t=2))
    assert tuple(x.tolist() for x in state[:2]) == ([2, 0.5, 4, 3], [1, 0.5, 1, 1])


@pytest.mark.parametrize("kappa2", [1e6, np.inf])
def test_a_large_kappa_is_unbiased(kappa2: float) -> None:
    engine = Serial(Quadratic.random(6, 3, noise=1.0), Local(lr=0.05, steps=2))
    participation = Bernoulli([0.9, 0.8, 0.7, 0.5, 0.3, 0.2])
    plain = list(simulate(engine, Unbiased(), participation, rounds=25))
    careful = list(simulate(engine, CAFed(kappa2=kappa2), participation, rounds=25))
    assert all(np.array_equal(x.params, y.params) for x, y in zip(plain, careful, strict=True))
    bold = list(simulate(engine, CAFed(kappa2=0.0), participation, rounds=25))
    assert not np.array_equal(plain[-1].params, bold[-1].params)


def test_a_client_without_weight_does_not_train() -> None:
    strategy = CAFed()
    a = asked([0, 1], [1, 1], [1.0, 0.0], [0.5, 0.5], [0, 0])
    assert strategy.select(strategy.init(2, 1), a)[0].tolist() == [0]


def test_a_simulation_shows_who_was_left_out_and_still_counts_them() -> None:
    task = Quadratic(np.array([[0.0], [0.1], [0.2], [4.0]]))  # the last is far from the others
    engine = Serial(task, Local(lr=0.1, steps=1))
    run = list(simulate(engine, CAFed(kappa2=0.01, optimum=0.0), Bernoulli(1.0), rounds=10, estimator=Intervals(2)))
    assert run[-1].available.tolist() == [0, 1, 2, 3]
    assert run[-1].chosen.tolist() == run[-1].clients.tolist()
    assert 3 not in run[-1].chosen
    assert run[-1].probs.tolist() == [1, 1, 1, 1]  # there in every round, trained or not


class Spy(Unbiased):
    """Trains everybody, and keeps what it was told."""

    def init(self, n: int, d: int) -> Any:
        return []

    def select(self, state: State, a: Availability) -> tuple[Ids, State]:
        return a.clients, [*state, a]

    def aggregate(self, state: State, r: Any) -> Any:
        return super().aggregate(None, r)[0], state


def test_the_simulation_tells_of_the_mixing() -> None:
    engine = Serial(Quadratic.random(3, 1), Local(lr=0.1, steps=1))

    def told(participation: Any, **settings: Any) -> list[Availability]:
        return list(simulate(engine, Spy(), participation, rounds=3, **settings))[-1].checkpoint.state

    markov = Markov([0.5, 0.6, 0.7], [0.9, 0.5, -0.25])
    assert all(a.mixing.tolist() == pytest.approx([0.9, 0.5, -0.25]) for a in told(markov))
    assert told(Bernoulli(0.5))[0].mixing.tolist() == [0, 0, 0]
    assert told(markov, estimator=Intervals())[0].mixing.tolist() == [0, 0, 0]  # an estimator is not told
    given = Known([0.5, 0.5, 0.5], [0.1, 0.2, 0.3])
    assert told(markov, estimator=given)[0].mixing.tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert told(markov, estimator=given)[0].probs.tolist() == [0.5, 0.5, 0.5]


class Told:
    """A task that knows what its clients could reach alone."""

    optima = np.array([1.0, 2.0])


def test_it_is_told_the_local_optima_where_it_asks() -> None:
    asks = CAFed(kappa2=0.5, tau=0.1, optimum="local")
    assert asks.bind(Told()) == CAFed(0.5, 0.1, [1.0, 2.0])
    assert CAFed(optimum=0.0).bind(Told()) == CAFed(optimum=0.0)
    with pytest.raises(BadInput, match="optimum 'local' needs a simulation whose task has `optima`"):
        asks.init(2, 1)
    s = next(simulate(Serial(Quadratic.random(2, 1), Local(lr=0.1)), asks, Bernoulli(0.5), rounds=1))
    assert s.checkpoint.state.lowest.tolist() == [0, 0]
    with pytest.raises(BadInput, match="optimum must be a number, an array of numbers or 'local', got 'lcoal'"):
        CAFed(optimum="lcoal")


def test_a_hundred_thousand_clients_are_decided_in_linear_time() -> None:
    """An O(n²) rule would take minutes here."""
    n, rng, strategy = 100_000, np.random.default_rng(0), CAFed(optimum=0.0)
    a = asked(np.arange(n), rng.random(n), rng.dirichlet(np.ones(n)), rng.uniform(0.1, 1, n), rng.random(n))
    chosen, _ = strategy.select(strategy.init(n, 1), a)
    assert 0 < len(chosen) < n


def test_it_keeps_the_promises_of_a_strategy() -> None:
    check_strategy(CAFed())
    check_strategy(CAFed(kappa2=0.01, optimum=0.0))


def test_settings() -> None:
    assert CAFed(optimum=[1.0, 2.0]) == CAFed(optimum=np.array([1, 2])) != CAFed()
    assert hash(CAFed(optimum=[1.0, 2.0])) == hash(CAFed(optimum=(1.0, 2.0)))
    with pytest.raises(BadInput, match="kappa2 must be at least 0, got -1"):
        CAFed(kappa2=-1)
    with pytest.raises(BadInput, match=r"tau must be at least 0, got -0\.5"):
        CAFed(tau=-0.5)
    with pytest.raises(BadInput, match="optimum must be one loss or 3, got 2"):
        CAFed(optimum=[1.0, 2.0]).init(3, 1)


def test_binding_to_a_task_keeps_the_other_settings() -> None:
    rule = CAFed(kappa2=2.0, tau=0.1, by_magnitude=False)
    assert rule.bind(object()) == rule


@given(κ2=st.sampled_from([0.01, 0.1, 0.25, 1.0, 10.0]), seed=st.integers(0, 10**6))
def test_a_client_is_left_out_where_its_gap_exceeds_the_mean_by_what_its_weight_costs(κ2: float, seed: int) -> None:
    """g_i - ḡ ≥ 4 κ̄² Γ (2x + a_i)(1 - x - a_i); x is the weight left out so far (docs/reproduction)."""
    rng = np.random.default_rng(seed)
    n = 12
    a, g = rng.dirichlet(np.ones(n)), rng.random(n)
    kept, expected, order = np.ones(n, bool), np.ones(n, bool), rng.permutation(n)
    CAFed(κ2)._thin(kept, order, a, g)
    for i in order:
        x, mean = a[~expected].sum(), a[expected] @ g[expected] / a[expected].sum()
        if expected.sum() > 1 and g[i] - mean >= 4 * κ2 * g.max() * (2 * x + a[i]) * (1 - x - a[i]):
            expected[i] = False
    np.testing.assert_array_equal(kept, expected)


@pytest.mark.parametrize(("κ2", "most"), [(100.0, 0), (10.0, 1), (1.0, 15)])
def test_so_few_of_a_hundred_equal_clients_can_be_left_out(κ2: float, most: int) -> None:
    """The largest number over gaps of 0 and 1: every gap of 1 exceeds the mean by as much as a gap can."""
    out = []
    for ones in range(1, 60):
        kept, gaps = np.ones(100, bool), np.repeat([1.0, 0.0], [ones, 100 - ones])
        CAFed(κ2)._thin(kept, np.arange(100), np.full(100, 0.01), gaps)
        out.append(int((~kept).sum()))
    assert max(out) == most
