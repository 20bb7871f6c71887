"""Rules that are split: sums of messages give the steps of `aggregate`, and clients keep their memories."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedstale as fs
from fedstale.core import BadInput, Round
from fedstale.memory import AtClients
from fedstale.privacy.ring import Ring
from fedstale.privacy.sums import Summed, placed

N, D, T = 6, 5, 10
RULES = [
    fs.FedAvg(), fs.Unbiased(), fs.FedStale(0.0), fs.FedStale(0.4), fs.FedStale(1.0, skip_empty_rounds=True),
    fs.strategies.FedVARP(), fs.strategies.MIFA(), fs.SelfTuning(), fs.SelfTuning(unbiased=True, gain=0.5),
    fs.SelfTuning(beta=0.7),
]  # fmt: skip


def rounds(seed: int) -> list[Round]:
    rng = np.random.default_rng(seed)
    weights, probs = rng.dirichlet(np.ones(N)).astype(np.float32), rng.uniform(0.1, 1, N).astype(np.float32)
    found = []
    for t in range(1, T + 1):
        clients = np.flatnonzero(rng.random(N) < probs)
        updates = rng.standard_normal((len(clients), D)).astype(np.float32)
        ones, losses = np.ones((len(clients), 1), np.bool_), np.zeros(len(clients), np.float32)
        found.append(Round(t, np.zeros(D, np.float32), clients, updates, ones, losses, weights, probs))
    return found


@given(st.sampled_from(RULES), st.integers(0, 10_000))
def test_closing_with_the_sum_of_messages_is_aggregate(rule: fs.core.Strategy, seed: int) -> None:
    split, state, other = Summed(rule), rule.init(N, D), Summed(rule).init(N, D)
    for r in rounds(seed):
        (want, state), (step, other) = rule.aggregate(state, r), split.aggregate(other, r)
        np.testing.assert_allclose(step, want, rtol=1e-5, atol=1e-5)


@given(st.sampled_from(RULES), st.integers(0, 10_000))
def test_in_the_ring_a_step_is_off_by_rounding_only_and_the_sum_of_memories_never_drifts(
    rule: fs.core.Strategy, seed: int
) -> None:
    ring = Ring(range=200.0, most=10)
    split, exact = Summed(rule, ring), Summed(rule)
    state, other = split.init(N, D), exact.init(N, D)
    for r in rounds(seed):
        (step, state), (want, other) = split.aggregate(state, r), exact.aggregate(other, r)
        assert state.clipped == 0
        np.testing.assert_allclose(step, want, atol=1e-3)
        if state.memory is not None:
            v = np.full(N, 1.0) if isinstance(rule, fs.strategies.FedVARP) else N * r.weights.astype(np.float64)
            assert np.abs(state.total - v @ state.memory.rows).max() <= N * ring.step


def test_what_is_beyond_the_range_is_cut_and_counted() -> None:
    ring, none = Ring(range=2.0, most=10), np.zeros(0)
    codes = sum((ring.encode(np.array([x, 0.5]), none, none, np.array([1e-4])) for x in (5.0, 1.0, np.nan)), 0)
    sums, change, numbers, clipped = ring.decode(np.asarray(codes, np.uint32), 2, 0)
    np.testing.assert_allclose(sums, [3.0, 1.5], atol=3 * ring.step)
    np.testing.assert_allclose(numbers, [3e-4], rtol=1e-3)
    assert (len(change), clipped) == (0, 2)


def test_memories_that_are_cut_are_counted_too() -> None:
    ring, none = Ring(range=2.0, most=10), np.zeros(0)
    _, change, _, cut = ring.decode(ring.encode(none, np.zeros(3), np.array([3.0, 1.0, -2.5]), none), 0, 3)
    np.testing.assert_allclose(change, [2.0, 1.0, -2.0], atol=ring.step)
    assert cut == 2


def test_however_often_memories_change_their_sum_is_that_of_the_rounded_memories() -> None:
    ring, none, memory, total = Ring(range=2.0, most=10), np.zeros(0), np.zeros(3), np.zeros(3)
    for after in np.random.default_rng(1).uniform(-1, 1, (1000, 3)):
        total += ring.decode(ring.encode(none, memory, after, none), 0, 3)[1]
        memory = after
    np.testing.assert_allclose(total, memory, rtol=0, atol=0.501 * ring.step)


def test_numbers_have_a_wider_range_than_coordinates() -> None:
    ring, none = Ring(), np.zeros(0)
    for x in (1e-5, 3.14159, -1234.5678, 30000.0):
        codes = sum((ring.encode(none, none, none, np.array([x])) for _ in range(3)), 0)
        assert ring.decode(np.asarray(codes, np.uint32), 0, 0)[2] == pytest.approx([3 * x], rel=1e-4, abs=1e-6)


TASK = fs.Quadratic.random(n=8, d=3, noise=0.1)
ENGINE = fs.Serial(TASK, fs.Local(lr=0.05, steps=2))


def played(rule: fs.core.Strategy, **more: object) -> list[fs.core.Snapshot]:
    return [*fs.simulate(ENGINE, rule, fs.TwoGroups(p_min=0.3), **{"rounds": 12, "seed": 3, **more})]


@pytest.mark.parametrize("kind", [fs.FedStale, fs.strategies.MIFA, fs.strategies.FedVARP, fs.SelfTuning])
def test_a_run_with_the_memory_at_the_clients_has_the_steps_of_one_with_it_at_the_server(kind: type) -> None:
    here, there = played(kind()), played(kind(memory=AtClients()))
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(a.step, b.step, rtol=1e-4, atol=1e-6)
    state = there[-1].checkpoint.state
    assert fs.core.hooks_of(Summed(kind())).at_clients == ("memory",)
    assert isinstance(state.total, np.ndarray)
    assert state.total.shape == (3,)


def test_memories_of_clients_are_in_checkpoints_and_go_on_with_the_same_bits() -> None:
    rule = fs.SelfTuning(memory=AtClients())
    whole, middle = played(rule), played(rule, rounds=5)[-1].checkpoint
    assert np.array_equal(whole[-1].params, played(rule, start=middle)[-1].params)


def test_clients_that_lost_their_memories_begin_anew_and_so_does_the_sum() -> None:
    for rule in (fs.FedStale(0.5), fs.SelfTuning()):
        split, state, other, script = Summed(rule), Summed(rule).init(N, D), rule.init(N, D), rounds(4)
        for r in script[:5]:
            (_, state), (_, other) = split.aggregate(state, r), rule.aggregate(other, r)
        state, other = split.forget(state, np.array([2])), rule.forget(other, np.arange(N))
        assert (state.epoch, np.abs(state.total).max()) == (1, 0)
        for r in script[5:]:
            (step, state), (want, other) = split.aggregate(state, r), rule.aggregate(other, r)
            np.testing.assert_allclose(step, want, rtol=1e-5, atol=1e-5)


SECURE = fs.Privacy(secure=True)


@pytest.mark.parametrize("rule", [fs.FedAvg(), fs.FedStale(0.5), fs.SelfTuning()])
def test_a_simulation_with_secure_aggregation_differs_by_its_rounding(rule: fs.core.Strategy) -> None:
    plain, secure = (played(rule, privacy=privacy, rounds=30) for privacy in (None, SECURE))
    busy = [s.t for s in secure if len(s.clients) >= 3]
    assert busy
    if all(len(s.available) >= 3 for s in secure):
        np.testing.assert_allclose(secure[-1].params, plain[-1].params, atol=1e-3)


def test_a_round_with_fewer_than_three_clients_closes_without_them() -> None:
    for s in played(fs.FedStale(0.5), privacy=SECURE, rounds=40):
        assert len(s.clients) == 0 or len(s.clients) >= 3
        assert (len(s.refused) > 0) == (0 < len(s.available) < 3)


def test_a_stored_run_says_how_many_entries_were_cut(tmp_path: Path) -> None:
    run = fs.Run(ENGINE, fs.FedStale(0.5), fs.TwoGroups(p_min=0.9), 6, privacy=fs.Privacy(secure=True, range=0.01))
    lines = fs.record(run, tmp_path).metrics()
    assert max(line["clipped"] for line in lines) > 0
    wide = fs.record(run._replace(privacy=SECURE), tmp_path).metrics()
    assert {line["clipped"] for line in wide} == {0}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"rule": fs.strategies.Krum(liars=0.2)},
            "needs every update at the server, not sums of them alone; take fedavg",
        ),
        ({"rule": fs.strategies.Clipped(fs.FedStale(), 1.0)}, "needs every update at the server"),
        (
            {"defence": fs.defence.Defence()},
            "a defence judges single updates: it cannot be had where the server sees sums",
        ),
        ({"channel": fs.channels.Packets(size=1, loss=0.5)}, "whole updates are needed where the server sees sums"),
    ],
)
def test_what_needs_single_updates_is_refused(more: dict, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        played(**{"rule": fs.FedStale(), "privacy": SECURE, **more})


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fs.Privacy(secure=True, noise=1.0), "secure aggregation cannot be combined with noise or epsilon"),
        (lambda: fs.Privacy(secure=True, range=0.0), "range must be above 0 and finite, got 0.0"),
        (lambda: Ring(most=2), "most must be from 3 to 65536 clients, got 2"),
    ],
)
def test_bad_settings_are_one_sentence(make, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        make()


def test_a_part_of_an_update_is_refused() -> None:
    r, rule = next(r for r in rounds(1) if len(r.clients)), Summed(fs.FedStale())
    with pytest.raises(BadInput, match="sums need whole updates"):
        rule.aggregate(rule.init(N, D), r._replace(arrived=np.zeros((len(r.clients), D), np.bool_)))


def test_a_rule_without_the_setting_stays_as_it_is() -> None:
    rule = fs.FedStale()
    assert placed(rule) is rule
