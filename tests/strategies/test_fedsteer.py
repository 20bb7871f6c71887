"""FedSteer: the formulas written out with dense matrices, and its expectation over all who may come."""

import itertools

import numpy as np
import pytest

from fedstale.core import BadInput, Round
from fedstale.core.rng import stream
from fedstale.strategies import FedSteer

N, D, P = 4, 6, np.array([0.9, 0.3, 0.5, 0.7])
A = np.array([0.4, 0.3, 0.2, 0.1], np.float32)
RNG = stream(3, "fedsteer")


def heard(t, clients, updates):
    ids = np.array(clients, np.int64)
    zeros = np.zeros(D, np.float32)
    return Round(t, zeros, ids, updates[ids].astype(np.float32), np.ones((len(ids), 1), bool),
                 np.zeros(len(ids), np.float32), A, P.astype(np.float32))  # fmt: skip


ROUNDS = [([0, 1, 2, 3], RNG.standard_normal((N, D))), ([0, 2], RNG.standard_normal((N, D))),
          ([], RNG.standard_normal((N, D))), ([1, 3], RNG.standard_normal((N, D))),
          ([0, 1, 3], RNG.standard_normal((N, D)))]  # fmt: skip


@pytest.mark.parametrize("released", [False, True])
def test_equals_the_formulas_written_out(released):
    rule = FedSteer(core=2, ridge=0.1, released=released)
    state = rule.init(N, D)
    C = [int(np.flatnonzero(state.places == k)[0]) for k in range(2)]
    h, s = np.zeros((D, 2)), np.zeros((2, N))  # columns
    for t, (S, Δ) in enumerate(ROUNDS, 1):
        Δ = Δ.astype(np.float32).astype(np.float64)
        Q, new = h / 2, s.copy()
        λ = 0.1 * np.trace(Q.T @ Q) / 2
        if λ > 0:
            for i in S:
                new[:, i] = np.linalg.inv(Q.T @ Q + λ * np.eye(2)) @ Q.T @ Δ[i]
        c = Q @ (new if released else s)  # (d, n)
        expected = c @ A + sum((A[i] / P[i] * (Δ[i] - c[:, i]) for i in S), np.zeros(D))
        for k, j in enumerate(C):
            if j in S:
                h[:, k] = Δ[j]
        s = new
        step, state = rule.aggregate(state, heard(t, S, Δ))
        np.testing.assert_allclose(step, expected, rtol=1e-4, atol=1e-5)


def after_two_rounds(rule):
    state = rule.init(N, D)
    for t, (S, Δ) in enumerate(ROUNDS[:2], 1):
        _, state = rule.aggregate(state, heard(t, S, Δ))
    return state


def mean_step(rule, Δ):
    total = np.zeros(D)
    for came in itertools.product([False, True], repeat=N):
        chance = np.prod(np.where(came, P, 1 - P))
        step, _ = rule.aggregate(after_two_rounds(rule), heard(3, np.flatnonzero(came), Δ))
        total += chance * step
    return total


def test_it_is_unbiased_and_the_released_variant_is_not():
    Δ = RNG.standard_normal((N, D))
    np.testing.assert_allclose(mean_step(FedSteer(core=2), Δ), A @ Δ, rtol=1e-4, atol=1e-5)
    assert np.abs(mean_step(FedSteer(core=2, released=True), Δ) - A @ Δ).max() > 1e-2


def test_the_core_is_drawn_by_its_seed_and_never_larger_than_the_federation():
    assert sorted(FedSteer(core=9).init(N, D).places.tolist()) == [0, 1, 2, 3]
    places = [FedSteer(core=2, seed=k).init(20, D).places for k in range(5)]
    assert all((of >= 0).sum() == 2 for of in places)
    assert len({tuple(of.tolist()) for of in places}) > 1


@pytest.mark.parametrize(("settings", "sentence"), [({"core": 0}, "core"), ({"ridge": 0.0}, "ridge")])
def test_settings_are_checked(settings, sentence):
    with pytest.raises(BadInput, match=f"{sentence} must be"):
        FedSteer(**settings)
