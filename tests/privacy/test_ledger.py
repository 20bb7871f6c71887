"""The ledger, and the rules whose steps no client can move by more than they say."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedstale as fs
from fedstale.core import Array, BadInput, Floats, Mask, Round
from fedstale.privacy.gaussian import epsilon_of, mu_of
from fedstale.privacy.ledger import Privacy, costs, sensitivity_of
from fedstale.strategies import FedAvg, FedStale, SelfTuning, Unbiased
from fedstale.strategies.private import PrivateFedAvg, PrivateFedStale, clipped

N, D, T = 5, 4, 12


def round_of(t: int, row: Mask, updates: Array, weights: Array, probs: Array) -> Round:
    clients = np.flatnonzero(row)
    ones = np.ones((len(clients), 1), np.bool_)
    losses = np.zeros(len(clients), np.float32)
    return Round(t, np.zeros(updates.shape[1], np.float32), clients, updates[clients], ones, losses, weights, probs)


def steps(rule, presence, updates, weights, probs) -> tuple[Floats, Floats]:
    """(T, d) the steps, and (T, n) the sensitivities that the rule states before each."""
    state, made, stated = rule.init(presence.shape[1], updates.shape[2]), [], []
    for t, row in enumerate(presence):
        stated.append(rule.sensitivity(state, np.flatnonzero(row), weights, probs))
        step, state = rule.aggregate(state, round_of(t + 1, row, updates[t], weights, probs))
        made.append(step.astype(np.float64))
    return np.array(made), np.array(stated)


def drawn(seed: int) -> tuple[Mask, Array, Array, Array]:
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(N)).astype(np.float32)
    probs = rng.uniform(0.1, 1, N).astype(np.float32)
    presence = rng.random((T, N)) < probs
    return presence, (3 * rng.standard_normal((T, N, D))).astype(np.float32), weights, probs


RULES = [
    PrivateFedAvg(clip=1.0),
    PrivateFedStale(clip=1.0, beta=0.0),
    PrivateFedStale(clip=1.0, beta=0.6),
    PrivateFedStale(clip=1.0, beta=1.0, max_weight=0.5),
    PrivateFedStale(clip=1.0, beta=1.0, difference_clip=0.2),
    PrivateFedStale(clip=0.7, beta=0.5, difference_clip=0.9),
]


@given(st.sampled_from(RULES), st.integers(0, 10_000), st.integers(0, N - 1))
def test_no_client_moves_a_step_by_more_than_is_stated(rule, seed: int, client: int) -> None:
    presence, updates, weights, probs = drawn(seed)
    without = updates.copy()
    without[:, client] = 0  # its memory is then zero, too
    with_it, stated = steps(rule, presence, updates, weights, probs)
    moved = np.linalg.norm(with_it - steps(rule, presence, without, weights, probs)[0], axis=1)
    assert (moved <= stated[:, client] * (1 + 1e-5) + 1e-6).all()


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.3, 1.0]))
def test_what_is_stated_is_reached_and_has_the_closed_form(seed: int, beta: float) -> None:
    """Updates of length C that turn round at every visit are the worst case."""
    presence, updates, weights, probs = drawn(seed)
    client, visits = 0, np.flatnonzero(presence[:, 0])
    updates[:, client] = 0
    for k, t in enumerate(visits):
        updates[t, client, 0] = 2.0 * (-1) ** k
    without = updates.copy()
    without[:, client] = 0
    rule = PrivateFedStale(clip=2.0, beta=beta)
    made, stated = steps(rule, presence, updates, weights, probs)
    moved = np.linalg.norm(made - steps(rule, presence, without, weights, probs)[0], axis=1)
    np.testing.assert_allclose(moved, stated[:, client], rtol=1e-4, atol=1e-6)
    if len(visits):
        a, p, later = float(weights[0]), float(probs[0]), T - 1 - int(visits[0]) - (len(visits) - 1)
        square = (1 + (len(visits) - 1) * (1 + beta * (1 - p)) ** 2) / p**2 + beta**2 * later
        assert (stated[:, client] ** 2).sum() == pytest.approx(4 * a**2 * square, rel=1e-5)
        assert costs(rule, presence, weights, probs)[0] == pytest.approx((stated[:, client] ** 2).sum())


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.4, 1.0]))
def test_without_anything_to_cut_it_is_fedstale(seed: int, beta: float) -> None:
    presence, updates, weights, probs = drawn(seed)
    for rule in (PrivateFedStale(1e6, beta), PrivateFedStale(1e6, beta, difference_clip=1e6)):
        plain, mine = FedStale(beta), rule
        state, other = plain.init(N, D), mine.init(N, D)
        for t, row in enumerate(presence):
            r = round_of(t + 1, row, updates[t], weights, probs)
            (want, state), (step, other) = plain.aggregate(state, r), mine.aggregate(other, r)
            np.testing.assert_allclose(step, want, rtol=1e-4, atol=1e-5)


def test_the_differences_are_clipped_as_written() -> None:
    presence, updates, weights, probs = drawn(3)
    β, C, E = 0.8, 1.0, 0.3
    rule, h = PrivateFedStale(clip=C, beta=β, difference_clip=E), np.zeros((N, D))
    state = rule.init(N, D)
    for t, row in enumerate(presence):
        expected = β * weights @ h
        for i in np.flatnonzero(row):
            e = updates[t, i] - β * h[i]
            e *= min(1, E / np.linalg.norm(e))
            expected = expected + weights[i] / probs[i] * e
            new = β * h[i] + e
            h[i] = new * min(1, C / np.linalg.norm(new))
        step, state = rule.aggregate(state, round_of(t + 1, row, updates[t], weights, probs))
        np.testing.assert_allclose(step, expected, rtol=1e-4, atol=1e-5)


def test_an_accounting_without_weights_or_memory_fails_this_audit() -> None:
    """The inequality above is sharp enough to see a deliberately wrong ledger."""
    presence, updates, weights, probs = drawn(8)
    rule = PrivateFedStale(clip=2.0, beta=1.0)
    without = updates.copy()
    without[:, 0] = 0
    moved = np.linalg.norm(
        steps(rule, presence, updates, weights, probs)[0] - steps(rule, presence, without, weights, probs)[0],
        axis=1,
    )
    no_inverse = weights[0] * 2.0 * presence[:, 0]
    no_memory = weights[0] / probs[0] * 2.0 * presence[:, 0]
    assert (moved > no_inverse + 1e-3).any()
    assert (moved > no_memory + 1e-3).any()


def released(rule, rows, out: int, update_at, weights, probs) -> tuple[Floats, Floats]:
    """(T,) the steps of client 0 alone, d = 1, which is forgotten before round `out`, and what is stated."""
    state, made, stated = rule.init(2, 1), [], []
    for t, here in enumerate(rows):
        if t == out:
            state = rule.forget(state, np.array([0]))
        row = np.array([here and t < out, False])
        stated.append(rule.sensitivity(state, np.flatnonzero(row), weights, probs)[0])
        step, state = rule.aggregate(state, round_of(t + 1, row, update_at(t), weights, probs))
        made.append(float(step[0]))
    return np.array(made), np.array(stated)


def pattern(seed: int) -> tuple[Mask, int, float, Array, Array]:
    """Visits of a client that may join late and may run out of budget, β, weights and p."""
    rng = np.random.default_rng(seed)
    rows = (rng.random(9) < rng.uniform(0.1, 0.8)) & (np.arange(9) >= rng.integers(0, 4))
    out = int(rng.integers(5, 10)) if rng.random() < 0.5 else 9
    weights = np.array([rng.uniform(0.1, 0.9), 0.5], np.float32)
    return rows, out, float(rng.choice([0.0, 0.3, 1.0])), weights, rng.uniform(0.1, 1, 2).astype(np.float32)


def test_the_sensitivity_is_the_operator_of_aggregate_and_brute_force_on_two_hundred_patterns() -> None:
    for seed in range(200):
        rows, out, β, weights, probs = pattern(seed)
        rule, visits = PrivateFedStale(clip=1.0, beta=β), np.flatnonzero(rows[:out])
        impulse = lambda k: lambda t: np.array([[t == k], [0]], np.float32)  # noqa: E731
        M = np.array([released(rule, rows, out, impulse(k), weights, probs)[0] for k in visits]).reshape(-1, 9)
        stated = released(rule, rows, out, impulse(-1), weights, probs)[1]
        np.testing.assert_allclose(np.abs(M).sum(axis=0), stated, rtol=1e-4, atol=1e-6)
        if 0 < len(visits) <= 6:
            signs = np.array(np.meshgrid(*[[-1, 1]] * len(visits))).reshape(len(visits), -1).T
            assert np.square(signs @ M).sum(axis=1).max() == pytest.approx((stated**2).sum(), rel=1e-4)


def test_with_a_difference_clip_no_choice_of_updates_moves_more_than_is_stated_on_two_hundred_patterns() -> None:
    reached = []
    for seed in range(200):
        rows, out, β, weights, probs = pattern(seed)
        rule, rng = PrivateFedStale(clip=1.0, beta=β, difference_clip=0.4), np.random.default_rng(seed)
        for scale in (1.0, 100.0):
            x = (scale * rng.choice([-1.0, 1.0], 9)).astype(np.float32)
            chosen = lambda t, x=x: np.array([[x[t]], [0]], np.float32)  # noqa: E731
            made, stated = released(rule, rows, out, chosen, weights, probs)
            assert (np.abs(made) <= stated * (1 + 1e-5) + 1e-7).all()
            reached += [float(made @ made / (stated @ stated))] if stated.any() else []
    assert max(reached) == pytest.approx(1.0, rel=1e-4)  # it is tight where all updates point the same way


@pytest.mark.parametrize("wrong", ["no 1/p", "no memory rows"])
def test_an_audit_fails_a_wrong_ledger(wrong: str) -> None:
    """ε of a ledger that leaves something out is beaten by the best test between with and without the client."""
    rows, weights, probs = np.arange(9) < 5, np.array([0.5, 0.5], np.float32), np.array([0.3, 1.0], np.float32)
    rule, σ, δ = PrivateFedStale(clip=1.0, beta=1.0), 2.0, 1e-5
    turning = lambda t: np.array([[(-1.0) ** t], [0]], np.float32)  # noqa: E731
    made, stated = released(rule, rows, 9, turning, weights, probs)
    told = (
        np.where(rows, weights[0] * 1.0, stated) if wrong == "no 1/p" else np.where(rows, weights[0] / probs[0], 0)
    )
    audited = epsilon_of(float(np.linalg.norm(made)) / σ, δ)  # of two Gaussians that far apart: exact
    assert audited > 1.05 * epsilon_of(float(np.linalg.norm(told)) / σ, δ)
    assert audited <= epsilon_of(float(np.linalg.norm(stated)) / σ, δ) * (1 + 1e-6)


def test_a_client_is_retired_before_it_passes_its_budget() -> None:
    presence, updates, weights, probs = drawn(5)
    rule, privacy = PrivateFedStale(clip=1.0, beta=1.0, difference_clip=0.5), Privacy(noise=0.4, epsilon=4.0)
    state, ledger = rule.init(N, D), privacy.init(N)
    for t, row in enumerate(presence):
        asked, state, ledger = privacy.admitted(ledger, rule, state, np.flatnonzero(row), weights, probs)
        assert not ledger.retired[asked].any()
        mask = np.isin(np.arange(N), asked)
        ledger = privacy.told(ledger, sensitivity_of(rule, state, asked, weights, probs))
        _, state = rule.aggregate(state, round_of(t + 1, mask, updates[t], weights, probs))
    assert 0 < ledger.retired.sum() < N
    assert (state.written[ledger.retired] == 0).all()
    assert (ledger.epsilons() <= 4.0 + 1e-9).all()
    assert ledger.epsilons()[0] == pytest.approx(epsilon_of(float(np.sqrt(ledger.spent[0])), 1e-5))


def test_noise_from_a_budget_lets_the_dearest_client_reach_it_and_nobody_retire() -> None:
    presence, _, weights, probs = drawn(5)
    rule = PrivateFedStale(clip=1.0, beta=1.0)
    spent = costs(rule, presence, weights, probs)
    privacy = Privacy(epsilon=2.0).calibrated(spent)
    assert privacy.noise == pytest.approx(np.sqrt(spent.max()) / mu_of(2.0, 1e-5))
    state, ledger = rule.init(N, 1), privacy.init(N)
    for t, row in enumerate(presence):
        asked, state, ledger = privacy.admitted(ledger, rule, state, np.flatnonzero(row), weights, probs)
        ledger = privacy.told(ledger, sensitivity_of(rule, state, asked, weights, probs))
        _, state = rule.aggregate(state, round_of(t + 1, row, np.zeros((N, 1), np.float32), weights, probs))
    assert ledger.epsilons().max() == pytest.approx(2.0, rel=1e-6)


def test_clipping_keeps_what_is_short_enough() -> None:
    short, long = np.array([0.3, 0.4], np.float32), np.array([3, 4], np.float32)
    assert clipped(short, 0.6) is short
    np.testing.assert_allclose(clipped(long, 0.5), [0.3, 0.4], rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Privacy(), "privacy needs noise or epsilon, or secure = true, got neither"),
        (lambda: Privacy(noise=-1.0), "noise must be above 0 and finite, got -1.0"),
        (lambda: Privacy(epsilon=0.0), "epsilon must be above 0 and finite, got 0.0"),
        (lambda: Privacy(noise=1.0, delta=1.0), "delta must be above 0 and below 1, got 1.0"),
        (lambda: PrivateFedStale(clip=0.0), "clip must be above 0 and finite, got 0.0"),
        (lambda: PrivateFedStale(clip=1.0, beta=2.0), r"beta must be in \[0, 1\], got 2.0"),
        (
            lambda: PrivateFedStale(clip=1.0, difference_clip=-1.0),
            "difference_clip must be above 0 and finite, got",
        ),
        (lambda: PrivateFedAvg(clip=0.0), "clip must be above 0 and finite, got 0.0"),
    ],
)
def test_bad_input_is_one_sentence(make, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        make()


@pytest.mark.parametrize("rule", [FedAvg(), Unbiased(), SelfTuning()])
def test_a_rule_that_bounds_nobody_is_refused(rule) -> None:
    presence, _, weights, probs = drawn(1)
    with pytest.raises(BadInput, match="bounds no client's influence on a step"):
        costs(rule, presence, weights, probs)


def test_a_rule_around_a_private_one_must_bound_its_steps_anew() -> None:
    """A longer step is moved further by one client than the bound of the rule inside says."""
    private = fs.strategies.PrivateFedAvg(clip=1.0)
    said = "Extrapolated may change the steps of PrivateFedAvg, whose bound privacy needs; take PrivateFedAvg alone"
    engine = fs.Serial(fs.Quadratic.random(n=6, d=4, noise=0.1), fs.Local(lr=0.02, steps=3))
    here, privacy = (engine, fs.TwoGroups(0.5)), Privacy(noise=1.0)
    with pytest.raises(BadInput, match=said):
        fs.simulate(here[0], fs.strategies.Extrapolated(private), here[1], rounds=2, privacy=privacy)
    shorter = fs.strategies.Clipped(private, 0.01)  # the bound holds for all updates, shorter ones too
    assert len(list(fs.simulate(here[0], shorter, here[1], rounds=2, privacy=privacy))) == 2


@fs.part
class Boasts(PrivateFedStale):
    """States less than half of what a client can move."""

    def sensitivity(self, *given: Any) -> Floats:
        return 0.4 * super().sensitivity(*given)


def test_check_strategy_finds_a_sensitivity_that_is_too_small() -> None:
    with pytest.raises(AssertionError, match="may move a step by at most twice its sensitivity"):
        fs.testing.check_strategy(Boasts(clip=1.0))
