"""Simulations with differential privacy: noise, budgets and the ledger in a run."""

from pathlib import Path

import numpy as np
import pytest

import fedstale as fs
from fedstale.core import NOBODY, BadInput, Round
from fedstale.privacy.noise import Noised

TASK = fs.Quadratic.random(n=8, d=3, noise=0.1)
ENGINE = fs.Serial(TASK, fs.Local(lr=0.05, steps=2))
RULE = fs.strategies.PrivateFedStale(clip=1.0, difference_clip=0.3)


def played(
    rule: fs.strategies.PrivateFedStale = RULE, privacy: fs.Privacy | None = None, **more
) -> list[fs.core.Snapshot]:
    parts = {"rounds": 12, "seed": 3, **more}
    return [*fs.simulate(ENGINE, rule, fs.TwoGroups(p_min=0.3), privacy=privacy, **parts)]


def test_the_noise_has_the_stated_deviation_and_is_not_that_of_another_seed() -> None:
    plain, noised, other = played(rounds=1), played(privacy=fs.Privacy(noise=0.5), rounds=1), None
    other = played(privacy=fs.Privacy(noise=0.5), rounds=1, seed=4)
    assert not np.array_equal(plain[0].step, noised[0].step)
    rule = Noised(RULE, fs.Privacy(noise=0.5), 3)
    draws = np.concatenate(
        [rule.privacy.noised(np.zeros(4000, np.float32), rule._normal(t, 4000)) for t in range(20)]
    )
    assert draws.std() == pytest.approx(0.5, rel=0.01)
    assert not np.array_equal(noised[0].step - plain[0].step, other[0].step)


def test_every_round_has_noise_of_its_own() -> None:
    rule, none = Noised(RULE, fs.Privacy(noise=0.5), 3), np.zeros((0, 50), np.float32)
    weights, state = np.full(8, 1 / 8, np.float32), rule.init(8, 50)
    rounds = [Round(t, none.sum(0), NOBODY, none, none > 0, none[:, 0], weights, weights) for t in (1, 2)]
    first, second = (rule.aggregate(state, r)[0] for r in rounds)
    assert not np.isclose(first, second).any(), "what is known of one round would tell the noise of all"


def test_nobody_passes_the_budget_and_who_would_is_not_asked_any_more() -> None:
    snapshots = played(privacy=fs.Privacy(noise=0.3, epsilon=3.0), rounds=40)
    ledger = snapshots[-1].checkpoint.state.ledger
    assert ledger.retired.sum() > 0
    assert ledger.epsilons().max() <= 3.0
    out = np.flatnonzero(ledger.retired)
    assert not any(np.isin(out, s.chosen).any() for s in snapshots[-3:])
    assert (snapshots[-1].checkpoint.state.inner.written[out] == 0).all()


def test_an_epsilon_alone_becomes_the_noise_with_which_nobody_passes_it() -> None:
    ledger = played(privacy=fs.Privacy(epsilon=2.0))[-1].checkpoint.state.ledger
    assert ledger.epsilons().max() == pytest.approx(2.0, rel=1e-6)
    assert not ledger.retired.any()


def test_an_epsilon_alone_knows_that_rare_arrivals_count_more() -> None:
    ledger = played(privacy=fs.Privacy(epsilon=2.0), channel=fs.channels.Loss(0.7))[-1].checkpoint.state.ledger
    assert ledger.epsilons().max() <= 2.0
    assert not ledger.retired.any()


def test_a_run_that_is_resumed_has_the_same_bits_and_the_same_ledger() -> None:
    whole = played(privacy=fs.Privacy(noise=0.3, epsilon=5.0))
    middle = played(privacy=fs.Privacy(noise=0.3, epsilon=5.0), rounds=5)[-1].checkpoint
    again = played(privacy=fs.Privacy(noise=0.3, epsilon=5.0), start=middle)
    assert np.array_equal(whole[-1].params, again[-1].params)
    assert np.array_equal(whole[-1].checkpoint.state.ledger.spent, again[-1].checkpoint.state.ledger.spent)


def test_a_budget_that_everybody_has_spent_already_is_refused() -> None:
    middle = played(privacy=fs.Privacy(noise=0.3), rounds=20)[-1].checkpoint
    with pytest.raises(BadInput, match=r"epsilon must be above .*, which every client has spent already"):
        played(privacy=fs.Privacy(noise=0.3, epsilon=0.001), rounds=30, start=middle)


def test_the_ledger_is_in_the_metrics_of_a_stored_run_and_of_each_client(tmp_path: Path) -> None:
    run = fs.Run(ENGINE, RULE, fs.TwoGroups(p_min=0.3), 6, privacy=fs.Privacy(epsilon=4.0))
    folder = fs.record(run, tmp_path)
    told = [line["epsilon"] for line in folder.metrics()]
    assert told == sorted(told)
    assert told[-1] == pytest.approx(4.0, rel=1e-6)
    assert max(folder.clients()["epsilon"]) == pytest.approx(4.0, rel=1e-5)
    assert "privacy" not in fs.record(run._replace(privacy=None), tmp_path).config()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"defence": fs.defence.Defence()}, "privacy and a defence do not go together"),
        ({"channel": fs.channels.Packets(size=1, loss=0.5)}, "privacy needs whole updates, got a channel"),
        ({"rule": fs.FedAvg()}, r"FedAvg\(\) bounds no client's influence"),
        ({"privacy": 4}, r"privacy must be an object such as Privacy\(epsilon=4.0\), got 4"),
    ],
)
def test_what_would_break_the_guarantee_is_refused(more: dict, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        played(**{"privacy": fs.Privacy(epsilon=2.0), **more})


def test_the_values_of_another_accountant() -> None:
    """Of dp-accounting's PLDAccountant: noise multiplier, compositions, δ, ε."""
    from fedstale.privacy.gaussian import epsilon_of

    for multiplier, times, delta, epsilon in (
        (1, 1, 1e-5, 4.37718), (2, 10, 1e-5, 7.51128), (5, 100, 1e-6, 10.99715), (10, 300, 1e-5, 8.38542),
        (20, 300, 1e-7, 4.5542), (3, 5, 1e-4, 2.69271),
    ):  # fmt: skip
        assert epsilon_of(times**0.5 / multiplier, delta) == pytest.approx(epsilon, abs=1e-4)
