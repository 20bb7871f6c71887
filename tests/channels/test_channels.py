"""Channels: their marginals, their bursts, their retries, and what inverse weighting makes of them."""

import copy
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstale.channels import GilbertElliott, Loss, Lossless, Packets
from fedstale.core import BadInput, Local, Round
from fedstale.core.rng import stream
from fedstale.engines import Serial
from fedstale.participation import Bernoulli
from fedstale.simulate import simulate
from fedstale.strategies import FedAvg, FedStale, Unbiased
from fedstale.tasks.quadratic import Quadratic
from fedstale.testing import check_channel

CHANNELS = {
    "lossless": Lossless(),
    "uplink": Loss(0.4),
    "both": Loss([0.1, 0.5, 0.9], down=[0.6, 0.0, 0.3]),
    "both, retried": Loss([0.1, 0.5, 0.9], down=0.3, retries=2),
    "bursts": GilbertElliott(0.2, [0.5, 0.25, 0.1]),
    "bursts, both links": GilbertElliott(0.3, 0.4, good=0.1, bad=[0.6, 0.9, 1.0], both_links=True),
    "bursts, retried": GilbertElliott(0.3, 0.4, good=0.1, bad=0.7, both_links=True, retries=1),
    "packets": Packets(2, [0.2, 0.5, 0.8]),
    "packets, retried": Packets(3, 0.7, retries=1),
    "one packet": Packets(9, 0.3),
}
every = pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS.keys())
N, D = 3, 5


def streams(seed, t):
    return partial(stream, seed, "channel", t)


def one_round(channel, state, clients, d, names):
    """(k, d) what arrives of everybody who was chosen, nothing of those who did not get the parameters."""
    reached, state = channel.downlink(state, clients, names)
    arrived, state = channel.uplink(state, clients[reached], d, names)
    masks = np.zeros((len(clients), d), bool)
    masks[reached] = arrived
    return masks, state


def attempts(q, retries):
    """The chance that a message arrives, by walking through every attempt."""
    still_lost, arrived = 1.0, 0.0
    for _ in range(retries + 1):
        arrived += still_lost * (1 - q)
        still_lost *= q
    return arrived


def at(setting, i):
    return np.broadcast_to(setting, N)[i].item()


def law(channel, i, d):
    """Every (d,) mask that client i's update can arrive with, and its probability: from the definitions."""
    whole, nothing = np.ones(d, bool), np.zeros(d, bool)
    if isinstance(channel, Lossless):
        return [(whole, 1.0)]
    if isinstance(channel, Loss):
        p = attempts(at(channel.down, i), channel.retries) * attempts(at(channel.up, i), channel.retries)
        return [(whole, p), (nothing, 1 - p)]
    if isinstance(channel, GilbertElliott):
        chain = np.array([[1 - at(channel.worsen, i), at(channel.worsen, i)], [at(channel.recover, i), 0]])
        chain[1, 1] = 1 - at(channel.recover, i)
        good, bad = np.linalg.matrix_power(chain, 500)[0]  # where the chain is after a long time
        uses = 2 if channel.both_links else 1
        p = good * attempts(at(channel.good, i), channel.retries) ** uses
        p += bad * attempts(at(channel.bad, i), channel.retries) ** uses
        return [(whole, p), (nothing, 1 - p)]
    packets = [np.arange(k, min(k + channel.size, d)) for k in range(0, d, channel.size)]
    p, found = attempts(at(channel.loss, i), channel.retries), []
    for outcome in product([True, False], repeat=len(packets)):
        mask = nothing.copy()
        for inside, ok in zip(packets, outcome, strict=True):
            mask[inside] = ok
        found.append((mask, np.prod([p if ok else 1 - p for ok in outcome])))
    return found


@every
def test_keeps_the_contract_of_a_channel(channel):
    check_channel(channel, n=N, rounds=200)


@every
def test_the_reported_probabilities_are_those_of_the_definition(channel):
    for i in range(N):
        anything = sum(p for mask, p in law(channel, i, D) if mask.any())
        a_coordinate = sum(p for mask, p in law(channel, i, D) if mask[-1])
        assert channel.probs(N, D)[i] == pytest.approx(anything, abs=1e-6)
        assert channel.probs(N, D)[i] * channel.share(N, D)[i] == pytest.approx(a_coordinate, abs=1e-6)
    assert channel.probs(N, D).dtype == channel.share(N, D).dtype == np.float32


@every
def test_inverse_weighting_is_unbiased_over_all_that_can_happen(channel):
    """E[step] of UPGA-PL is Σ a_i Δ_i: every combination of masks, with its probability."""
    rng = np.random.default_rng(1)
    Δ, a = rng.standard_normal((N, D)).astype(np.float32), np.array([0.5, 0.3, 0.2], np.float32)
    probs, mean = channel.probs(N, D) * channel.share(N, D), np.zeros(D)
    for masks in product(*(law(channel, i, D) for i in range(N))):
        arrived = np.stack([mask for mask, _ in masks])
        heard = np.flatnonzero(arrived.any(axis=1))
        r = Round(1, np.ones(D, np.float32), heard, Δ[heard], arrived[heard], Δ[heard, 0], a, probs)
        mean += np.prod([p for _, p in masks]) * Unbiased().aggregate(None, r)[0]
    np.testing.assert_allclose(mean, a @ Δ, atol=2e-6)


@every
def test_inverse_weighting_is_unbiased_over_what_is_drawn(channel):
    rng = np.random.default_rng(2)
    Δ, a = rng.standard_normal((N, D)).astype(np.float32), np.array([0.5, 0.3, 0.2], np.float32)
    probs, clients, steps = channel.probs(N, D) * channel.share(N, D), np.arange(N), []
    for seed in range(1500):
        names = streams(seed, 1)
        arrived, _ = one_round(channel, channel.init(N, streams(seed, 0)), clients, D, names)
        heard = np.flatnonzero(arrived.any(axis=1))
        r = Round(1, np.ones(D, np.float32), heard, Δ[heard], arrived[heard], Δ[heard, 0], a, probs)
        steps.append(Unbiased().aggregate(None, r)[0])
    drawn = np.array(steps, np.float64)
    error = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - a @ Δ) <= 4.5 * error + 1e-6).all()


@every
@pytest.mark.parametrize("t", [1, 4])
def test_long_samples_have_the_reported_marginals(channel, t):
    """Many clients in one round are independent, also over a channel that remembers."""
    copies = 4000  # of each of the three clients
    many = type(channel)(*(np.tile(v, copies) if np.ndim(v) else v for v in vars(channel).values()))
    clients, state = np.arange(N * copies), many.init(N * copies, streams(7, 0))
    for now in range(1, t + 1):
        arrived, state = one_round(many, state, clients, D, streams(7, now))
    p, share = channel.probs(N, D), channel.share(N, D)
    by_client = arrived.reshape(copies, N, D)
    for seen, expected in (
        (by_client.any(axis=2), p),
        (by_client[:, :, 0], p * share),
        (by_client[:, :, -1], p * share),
    ):
        error = np.sqrt(expected * (1 - expected) / copies)
        assert (np.abs(seen.mean(axis=0) - expected) <= 4.5 * error + 1e-6).all()


@every
@settings(derandomize=True, deadline=None, max_examples=20)
@given(chosen=st.sets(st.integers(0, 19)), seed=st.integers(0, 3))
def test_who_was_chosen_does_not_change_who_is_lost(channel, chosen, seed):
    wide = type(channel)(*(np.resize(v, 20) if np.ndim(v) else v for v in vars(channel).values()))
    some, everybody = np.array(sorted(chosen), np.int64), np.arange(20)
    few, _ = one_round(wide, wide.init(20, streams(seed, 0)), some, D, streams(seed, 1))
    all_, _ = one_round(wide, wide.init(20, streams(seed, 0)), everybody, D, streams(seed, 1))
    assert np.array_equal(few, all_[some])


@every
def test_rounds_are_lost_anew_and_seeds_differ(channel):
    big = type(channel)(*(np.resize(v, 400) if np.ndim(v) else v for v in vars(channel).values()))
    clients, state = np.arange(400), big.init(400, streams(0, 0))
    first, state = one_round(big, state, clients, D, streams(0, 1))
    second, _ = one_round(big, state, clients, D, streams(0, 2))
    other, _ = one_round(big, big.init(400, streams(1, 0)), clients, D, streams(1, 1))
    lossy = not isinstance(channel, Lossless)
    assert np.array_equal(first, second) != lossy
    assert np.array_equal(first, other) != lossy


def weather(channel, n, rounds):
    """(rounds, n) whose times were bad."""
    state, rows = channel.init(n, streams(3, 0)), []
    for t in range(1, rounds + 1):
        _, state = channel.downlink(state, np.arange(0), streams(3, t))
        rows.append(state.bad)
    return np.array(rows)


def test_bursts_last_as_long_as_they_should():
    worsen, recover = 0.1, 0.25
    bad = weather(GilbertElliott(worsen, recover), 1000, 300)
    ends, starts = bad[:-1] & ~bad[1:], ~bad[:-1] & bad[1:]
    for seen, tries, p in ((ends.sum(), bad[:-1].sum(), recover), (starts.sum(), (~bad[:-1]).sum(), worsen)):
        assert abs(seen / tries - p) <= 4.5 * np.sqrt(p * (1 - p) / tries)
    lengths = []
    for t, client in zip(
        *np.nonzero(starts[:200]), strict=True
    ):  # 100 rounds are left: 0.75^100 of them last longer
        lengths.append(np.argmin(bad[t + 1 :, client]))
    geometric = np.sqrt((1 - recover) / recover**2)  # the deviation of a burst's length
    assert abs(np.mean(lengths) - 1 / recover) <= 4.5 * geometric / np.sqrt(len(lengths))


@pytest.mark.parametrize("t", [0, 1, 30])
def test_the_weather_is_stationary_from_the_start(t):
    n, share = 20_000, 0.1 / (0.1 + 0.3)
    channel = GilbertElliott(0.1, 0.3)
    bad = weather(channel, n, t)[-1] if t else channel.init(n, streams(3, 0)).bad
    assert abs(bad.mean() - share) <= 4.5 * np.sqrt(share * (1 - share) / n)


def test_weather_that_does_not_matter_is_independent_loss():
    np.testing.assert_allclose(GilbertElliott(0.3, 0.1, good=0.2, bad=0.2).probs(4, 1), Loss(0.2).probs(4, 1))
    both = GilbertElliott(0.3, 0.1, good=0.2, bad=0.2, both_links=True)
    np.testing.assert_allclose(both.probs(4, 1), Loss(0.2, down=0.2).probs(4, 1))


@pytest.mark.parametrize("retries", [0, 1, 2, 5])
def test_a_retry_costs_one_transmission_for_each_message_lost_so_far(retries):
    """With the same luck, R retries send n messages and once more what 0, 1, …, R - 1 retries lost."""
    n, q, names = 5000, np.linspace(0, 1, 5000), streams(0, 1)
    lost, before = [], np.zeros(n, bool)
    for allowed in range(retries + 1):
        channel = Loss(q, retries=allowed)
        arrived, state = channel.uplink(channel.init(n, names), np.arange(n), D, names)
        assert state.transmissions == n + sum(lost)
        assert (arrived[:, 0] >= before).all()  # what arrived with fewer retries arrives
        before = arrived[:, 0]
        lost.append(int((~before).sum()))
    expected = q ** (retries + 1)
    assert abs(lost[-1] - expected.sum()) <= 4.5 * np.sqrt((expected * (1 - expected)).sum())


@settings(derandomize=True, deadline=None, max_examples=25)
@given(q=st.floats(0, 0.95), retries=st.integers(0, 6))
def test_transmissions_are_as_many_as_expected(q, retries):
    n, names = 4000, streams(5, 1)
    channel = Loss(q, retries=retries)
    _, state = channel.uplink(channel.init(n, names), np.arange(n), D, names)
    counts = np.arange(1, retries + 2)
    p = np.where(counts <= retries, q ** (counts - 1) * (1 - q), q ** float(retries))
    mean = counts @ p
    error = np.sqrt((counts**2 @ p - mean**2) / n)
    assert abs(state.transmissions / n - mean) <= 4.5 * error + 1e-9


def test_limits_of_loss_and_retries():
    clients, names = np.arange(500), streams(0, 1)
    for q, retries, arrives, sent in ((1.0, 3, False, 4), (0.0, 3, True, 1), (1.0, 0, False, 1)):
        channel = Loss(q, retries=retries)
        arrived, state = channel.uplink(channel.init(500, names), clients, D, names)
        assert (arrived == arrives).all()
        assert state.transmissions == sent * 500
        assert (channel.probs(500, D) == arrives).all()
    never_gives_up = Loss(0.99, down=0.5, retries=10**9)
    arrived, _ = one_round(never_gives_up, never_gives_up.init(500, names), clients, D, names)
    assert arrived.all()
    assert (never_gives_up.probs(500, D) == 1).all()


def test_packets_are_whole_and_lost_independently():
    channel, n, d = Packets(3, 0.4), 6000, 8
    arrived, state = channel.uplink(channel.init(n, streams(0, 1)), np.arange(n), d, streams(0, 1))
    assert arrived.shape == (n, d)
    for packet in (slice(0, 3), slice(3, 6), slice(6, 8)):
        assert (arrived[:, packet].all(axis=1) == arrived[:, packet].any(axis=1)).all()
    assert state.transmissions == 3 * n
    two_packets, two_clients = arrived[:, 0] & arrived[:, 7], arrived[::2, 0] & arrived[1::2, 0]
    for both in (two_packets, two_clients):
        assert abs(both.mean() - 0.36) <= 4.5 * np.sqrt(0.36 * 0.64 / len(both))


def test_a_packet_larger_than_the_update_holds_all_of_it():
    names, clients = streams(0, 1), np.arange(40)
    arrived, _ = Packets(10**12, 0.5).uplink(Packets(1, 0.5).init(40, names), clients, 4, names)
    assert (arrived.all(axis=1) == arrived.any(axis=1)).all()
    assert 0 < arrived.mean() < 1
    np.testing.assert_allclose(Packets(10**12, 0.5).probs(2, 4), 0.5)
    assert (Packets(10**12, 0.5).share(2, 4) == 1).all()


def test_only_lost_packets_are_sent_again():
    names, clients = streams(0, 1), np.arange(300)
    once, first = Packets(1, 0.5).uplink(Packets(1, 0.5).init(300, names), clients, 6, names)
    twice = Packets(1, 0.5, retries=1)
    more, state = twice.uplink(twice.init(300, names), clients, 6, names)
    assert (more >= once).all()
    assert state.transmissions == first.transmissions + int((~once).sum())


TASK = Quadratic.random(3, D, seed=1, noise=0.1)
ENGINE = Serial(TASK, Local(lr=0.05, steps=2))


@every
def test_a_resumed_run_loses_the_same(channel):
    def run(start=None):
        return simulate(
            ENGINE, FedStale(0.5), Bernoulli(0.8), rounds=8, seed=3, channel=channel, start=copy.deepcopy(start)
        )

    whole = [copy.deepcopy(s) for s in run()]
    rest = list(run(whole[4].checkpoint))
    for one, two in zip(whole[5:], rest, strict=True):
        assert np.array_equal(one.clients, two.clients)
        assert np.array_equal(one.params, two.params)
    if not isinstance(channel, Lossless):
        assert rest[-1].checkpoint.channel.transmissions == whole[-1].checkpoint.channel.transmissions > 0


@every
def test_the_simulation_believes_in_what_a_coordinate_has(channel):
    snapshot = next(simulate(ENGINE, Unbiased(), Bernoulli([0.5, 0.9, 1.0]), rounds=1, channel=channel))
    expected = np.array([0.5, 0.9, 1.0]) * channel.probs(N, D) * channel.share(N, D)
    np.testing.assert_allclose(snapshot.probs, expected, rtol=1e-6)


def test_who_does_not_get_the_parameters_does_not_train():
    asked = []

    class Recording:
        task, local = TASK, ENGINE.local

        def train(self, jobs):
            asked.extend(job.clients for job in jobs)
            return ENGINE.train(jobs)

        def losses(self, job):
            return ENGINE.losses(job)

    channel = Loss([0.0, 0.0, 1.0], down=[1.0, 0.0, 0.0], retries=1)
    for snapshot in simulate(Recording(), FedAvg(), Bernoulli(1.0), rounds=3, channel=channel):
        assert snapshot.clients.tolist() == [1]
    assert [clients.tolist() for clients in asked] == [[1, 2]] * 3
    # each round: parameters twice to 0, once to 1 and 2; the update of 1 once, that of 2 twice
    assert snapshot.checkpoint.channel.transmissions == 3 * (4 + 3)


def test_transmissions_over_bursts_add_up():
    """Without retries: one for everybody chosen, and one for everybody who got the parameters."""
    channel, clients = GilbertElliott(0.3, 0.4, bad=0.8, both_links=True), np.arange(50)
    state, sent = channel.init(50, streams(0, 0)), 0
    for t in range(1, 6):
        reached, state = channel.downlink(state, clients, streams(0, t))
        _, state = channel.uplink(state, clients[reached], D, streams(0, t))
        sent += 50 + int(reached.sum())
        assert state.transmissions == sent


@pytest.mark.parametrize(
    "channel", [Loss(1.0), Loss(0.0, down=[0, 0, 1]), GilbertElliott(1, 1, good=1), Packets(2, 1)]
)
def test_what_never_arrives_is_refused_by_inverse_weighting(channel):
    with pytest.raises(BadInput, match="divides by the participation probability"):
        simulate(ENGINE, Unbiased(), Bernoulli(1.0), rounds=1, channel=channel)
    assert np.isfinite(next(simulate(ENGINE, FedAvg(), Bernoulli(1.0), rounds=1, channel=channel)).params).all()


PROBABILITY = r"must be a probability in [\[\(]0, 1\], one or one per client, got "


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Loss(1.5), f"^up {PROBABILITY}1.5$"),
        (lambda: Loss([0.1, -0.1]), f"^up {PROBABILITY}"),
        (lambda: Loss(0.1, down=float("nan")), f"^down {PROBABILITY}nan$"),
        (lambda: Loss([[0.1]]), f"^up {PROBABILITY}"),
        (lambda: Loss([]), f"^up {PROBABILITY}"),
        (lambda: Loss(0.1, retries=-1), "^retries must be at least 0, got -1$"),
        (lambda: Packets(0, 0.1), "^size must be at least 1, got 0$"),
        (lambda: Packets(1, 2), f"^loss {PROBABILITY}2$"),
        (lambda: Packets(1, 0.1, retries=-2), "^retries must be at least 0, got -2$"),
        (lambda: GilbertElliott(-1, 0.5), f"^worsen {PROBABILITY}-1$"),
        (lambda: GilbertElliott(0.5, 1.1), f"^recover {PROBABILITY}1.1$"),
        (lambda: GilbertElliott(0.5, 0), f"^recover {PROBABILITY}0$"),
        (lambda: GilbertElliott(0.5, [0.1, 0.0]), f"^recover {PROBABILITY}"),
        (lambda: GilbertElliott(0.5, 0.5, good=3), f"^good {PROBABILITY}3$"),
        (lambda: GilbertElliott(0.5, 0.5, bad=-3), f"^bad {PROBABILITY}-3$"),
        (lambda: GilbertElliott(0.5, 0.5, retries=-1), "^retries must be at least 0, got -1$"),
        (lambda: Loss([0.1, 0.2]).probs(3, 1), "^3 clients need 3 probabilities, got 2$"),
        (lambda: Packets(1, [0.1, 0.2]).share(3, 1), "^3 clients need 3 probabilities, got 2$"),
        (lambda: GilbertElliott([0.1, 0.2], 0.5).probs(3, 1), "^3 clients need 3 probabilities, got 2$"),
    ],
)
def test_wrong_settings_are_refused(make, sentence):
    with pytest.raises(BadInput, match=sentence):
        make()


def test_settings_are_compared_kept_and_cannot_be_changed():
    given_ = np.array([0.1, 0.2])
    channel = Loss(given_)
    given_[0] = 0.9
    assert channel == Loss([0.1, 0.2]) != Loss([0.9, 0.2])
    assert Loss(0.1) == Loss(0.1, down=0) != Loss(0.1, retries=1)
    assert hash(channel) == hash(Loss([0.1, 0.2]))
    assert repr(Loss(0.25)) == "Loss(up=0.25, down=0.0, retries=0)"
    with pytest.raises(ValueError, match="read-only"):
        channel.up[0] = 0.5
