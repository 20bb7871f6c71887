"""Differential privacy in a federation: noise, budgets, and the ε of every client in its status."""

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.flower.federation.server.diagnostics import status
from fedstale.flower.federation.server.rounds import Server
from fedstale.flower.federation.state.manifest import read_line, read_metrics
from fedstale.privacy.gaussian import epsilon_of
from fedstale.strategies import PrivateFedStale
from tests.flower.federation.inprocess import InProcess, roster_of
from tests.flower.federation.parts import TASK, N, made, played, server, table

RULE = {"kind": "private-fedstale", "clip": 1.0, "difference_clip": 0.2}
NOISE = {"noise": 0.1}


def test_a_federation_that_is_restarted_in_every_round_keeps_its_ledger(tmp_path):
    rows, link = table(6), InProcess(TASK, range(N))
    for row in rows:
        s = server(tmp_path, link, strategy=RULE, privacy=NOISE)
        last = played(s, link, row[None])[-1]
    weights, rule = np.full(N, 1 / N, np.float32), PrivateFedStale(1.0, difference_clip=0.2)
    memory, belief, spent = rule.init(N, 1), s.rules.estimator.init(N), np.zeros(N)
    for t, row in enumerate(rows, 1):
        probs = s.rules.estimator.probs(belief)
        spent += rule.sensitivity(memory, np.flatnonzero(row), weights, probs) ** 2 / 0.1**2
        memory.written[row] = t
        belief = s.rules.estimator.observe(belief, row)
    due = [epsilon_of(float(np.sqrt(x)), 1e-5) for x in spent]
    told = [client["epsilon"] for client in status(last.state, s.rules.estimator)["clients"]]
    np.testing.assert_allclose(told, due, rtol=1e-5)
    lines = read_metrics(s.settings.state)
    assert lines[-1]["epsilon"] == pytest.approx(max(due), rel=1e-5)
    assert all(line["train_loss"] is None for line in lines)
    assert read_line(s.settings.state, 6) == lines[-1]


def test_the_noise_cannot_be_drawn_again(tmp_path):
    ends = []
    for name in "ab":
        link = InProcess(TASK, range(N))
        folder = tmp_path / name
        folder.mkdir()
        s = server(folder, link, strategy=RULE, privacy=NOISE)
        ends.append(played(s, link, table(1))[-1].state.checkpoint.params)
    assert not np.isclose(*ends).any()


def test_clients_without_budget_are_not_asked_and_the_federation_ends_with_a_sentence(tmp_path):
    link = InProcess(TASK, range(N))
    s = server(tmp_path, link, strategy=RULE, privacy={"noise": 0.1, "epsilon": 8.0}, rounds=50)
    with pytest.raises(BadInput, match=r"the next round of any client would pass its budget of epsilon = 8.0"):
        for _ in s.play():
            pass
    lines = read_metrics(s.settings.state)
    assert len(lines[0]["asked"]) == N
    assert 0 < len(lines) < 50
    assert max(line["epsilon"] for line in lines) <= 8.0


def test_a_budget_that_is_spent_is_a_sentence_when_it_goes_on(tmp_path):
    link = InProcess(TASK, range(N))
    played(server(tmp_path, link, strategy=RULE, privacy=NOISE), link, table(3))
    s = server(tmp_path, link, strategy=RULE, privacy={"noise": 0.1, "epsilon": 0.01})
    with pytest.raises(BadInput, match=r"epsilon must be above .*, which every client has spent already, got 0.01"):
        next(s.play())


def test_who_joins_begins_without_anything_told(tmp_path):
    link = InProcess(TASK, range(N))
    versions = iter([roster_of(range(4)), *[roster_of(range(N), version=2)] * 9])
    s = Server(made(tmp_path, strategy=RULE, privacy=NOISE), link, lambda: next(versions), TASK.init)
    link.there = [0, 1, 2]
    play = s.play()
    next(play)
    after = next(play)
    play.close()
    ε = after.state.checkpoint.state.ledger.epsilons()
    assert (ε[:3] > 0).all()
    assert (ε[4:] == 0).all()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"strategy": "auto"}, "bounds no client's influence on a step, which privacy needs; take PrivateFedStale"),
        ({"privacy": {"epsilon": 4.0}}, "is not known before: give noise, to which `fedstale privacy` turns"),
        ({"privacy": {"noise": -1.0}}, "noise must be above 0 and finite, got -1.0"),
        ({"privacy": {"noise": 1.0, "delta": 1.0}}, "delta must be above 0 and below 1, got 1.0"),
        ({"privacy": {"secure": True}}, "secure = true is for simulations"),
        ({"privacy": {"noize": 1.0}}, "noize"),
        ({"strategy": {"kind": "private-fedstale", "clip": 0.0}}, "clip must be above 0 and finite, got 0.0"),
        ({"defence": True}, "privacy and a defence do not go together"),
        ({"round": {"evaluate": 2}}, "round.evaluate must be 0 with privacy, got 2"),
        ({"pace": {"kind": "buffer", "size": 2, "concurrency": 4}, "defence": False}, "leave out the pace"),
    ],
)
def test_what_would_break_the_guarantee_is_one_sentence(tmp_path, changes, sentence):
    with pytest.raises(BadInput, match=sentence):
        made(tmp_path, **{"strategy": RULE, "privacy": NOISE, **changes})


def test_averaged_buffers_are_refused(tmp_path):
    start = lambda seed: (TASK.init(seed), np.zeros(3))  # noqa: E731
    with pytest.raises(BadInput, match="privacy does not cover averaged buffers"):
        Server(
            made(tmp_path, strategy=RULE, privacy=NOISE),
            InProcess(TASK, range(N)),
            lambda: roster_of(range(N)),
            start,
        )
