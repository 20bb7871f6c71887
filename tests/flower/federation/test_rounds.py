"""The round loop, with clients in this process."""

import numpy as np
import pytest
import torch

from fedstale.core import BadInput
from fedstale.flower.federation.protocol import exchange
from fedstale.flower.federation.protocol.link import Arrival, Fault, LinkDown
from fedstale.flower.federation.server import rounds
from fedstale.flower.federation.server.diagnostics import status, trace, write_trace
from fedstale.flower.federation.server.rounds import Server, Stalled
from fedstale.flower.federation.state.manifest import checksum, read_manifest, read_metrics, write_manifest
from fedstale.flower.federation.state.resize import arrays_of, memories, with_arrays
from fedstale.flower.federation.state.server_state import Cohorts
from fedstale.lab.runs.store import RunFolder
from fedstale.participation import Trace
from fedstale.participation.estimators import Intervals
from fedstale.registry import RECIPES
from fedstale.tasks.supervised import Supervised
from fedstale.theory import plain_weights
from tests.flower.federation.inprocess import NODES, InProcess, roster_of, scaled
from tests.flower.federation.parts import LOCAL, TASK, N, made, played, server, simulated, simulated_task, table


def belief_of(closed):
    """The belief after a round, as something to compare."""
    return {path: array.tolist() for path, array in arrays_of(closed.state.checkpoint.belief).items()}


def memory_of(state, shadow=False):
    """The memory of the strategy, or that of its tracer."""
    return [memory for _, memory in memories(state.checkpoint.state)][shadow]


def observed(heard):
    """The belief of somebody who saw one round, with these clients heard."""
    estimator = Cohorts(Intervals())
    belief = estimator.observe(estimator.init(N), np.isin(np.arange(N), heard))
    return {path: array.tolist() for path, array in arrays_of(belief).items()}


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ("fedawe", "fedpbc", "focus")])
def test_every_recipe_has_the_bits_of_a_simulation_with_the_same_participation(tmp_path, name):
    """The server is restarted after every round, so that each state also goes through the disk."""
    rows, link = table(8), InProcess(TASK, range(N))
    for row in rows:
        s = server(tmp_path, link, strategy=name, server={"kind": "momentum", "lr": 0.7})
        last = played(s, link, row[None])[-1]
    assert np.array_equal(last.state.checkpoint.params, simulated(s.settings, rows))


def normed():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))


def normed_task():
    draw = np.random.default_rng(0)
    data = [(1 + draw.standard_normal((8 + i, 4), np.float32), draw.integers(3, size=8 + i)) for i in range(N)]
    return Supervised(normed, data, weights=range(1, N + 1))


@pytest.mark.parametrize("name", ["fedstale", "mifa", "scaffold", "ca-fed"])
def test_buffers_have_the_bits_of_a_simulation_too(tmp_path, name):
    """They are averaged plainly whatever the rule, and go through the disk after every round."""
    rows, task = table(5), normed_task()
    link, start = InProcess(task, range(N)), lambda seed: (task.init(seed), task.initial_buffers)
    for row in rows:
        s = Server(made(tmp_path, strategy=name), link, lambda: roster_of(range(N), weights=range(1, N + 1)), start)
        last = played(s, link, row[None])[-1].state.checkpoint
    due = simulated_task(s.settings, rows, task)
    assert np.array_equal(last.params, due.params)
    assert np.array_equal(last.buffers, due.buffers)
    assert not np.allclose(last.buffers, task.initial_buffers)


def test_a_start_without_the_buffers_of_the_model_is_a_sentence(tmp_path):
    task = normed_task()
    s = Server(made(tmp_path), InProcess(task, range(N)), lambda: roster_of(range(N)), task.init)
    with pytest.raises(BadInput, match=r"the server must send the 7 numbers of the buffers .*, got 0: let start"):
        next(s.play())
    other = Server(made(tmp_path), InProcess(task, range(N)), s.roster, lambda seed: (task.init(0), np.ones(7)))
    assert other.ledger.run != s.ledger.run
    with pytest.raises(BadInput, match="a finite flat vector of parameters, or that and one of buffers"):
        Server(made(tmp_path), s.link, s.roster, lambda seed: (task.init(0), np.full(7, np.nan)))


def test_who_is_asked_and_does_not_answer_leaves_no_gap(tmp_path):
    """Everybody is online; those who are absent in the table are silent, or send nonsense."""
    rows, link = table(6), InProcess(TASK, range(N))

    def answer(order, body):
        if rows[order.t - 1, order.client]:
            return None
        return [] if order.client % 2 else [Arrival("", order.node, body._replace(t=-1))]

    link.answer = answer
    s = server(tmp_path, link, rounds=6, round={"deadline": 1.0})
    *_, last = s.play()
    assert np.array_equal(last.state.checkpoint.params, simulated(s.settings, rows))
    assert last.state.counts.asked.tolist() == [6] * N
    assert last.state.counts.heard.tolist() == rows.sum(axis=0).tolist()


def test_a_key_that_is_not_in_the_roster_is_never_asked(tmp_path):
    link, asked = InProcess(TASK, range(N)), set()
    link.answer = lambda order, body: asked.add(order.client)
    (closed,) = server(tmp_path, link, n=4, rounds=1).play()
    assert asked == {0, 1, 2, 3}
    assert closed.state.ids.tolist() == [0, 1, 2, 3]


def test_a_server_that_is_killed_after_any_round_goes_on_with_the_same_bits(tmp_path):
    rows, link = table(8), InProcess(TASK, range(N))
    whole = played(server(tmp_path / "whole", link), link, rows)[-1]
    for row in rows:
        last = played(server(tmp_path / "often", link), link, row[None])[-1]  # a new server every round
    assert last.line["fingerprint"] == whole.line["fingerprint"]
    assert np.array_equal(last.state.counts.heard, rows.sum(axis=0))
    assert last.state.checkpoint.t == 8


@pytest.mark.parametrize("kind", ["float16", "int8", "float32"])
def test_coded_rows_and_rows_in_a_file_survive_a_kill_after_every_round(tmp_path, kind):
    memory = {"kind": kind} | ({"folder": str(tmp_path / "rows")} if kind == "float32" else {})
    rows, link, strategy = table(5), InProcess(TASK, range(N)), {"kind": "fedstale", "memory": memory}
    for row in rows:
        s = server(tmp_path / "often", link, strategy=strategy)
        last = played(s, link, row[None])[-1]
    assert np.array_equal(last.state.checkpoint.params, simulated(s.settings, rows))


def test_what_is_asked_for_is_played_and_no_more(tmp_path):
    link = InProcess(TASK, range(N))
    assert len(list(server(tmp_path, link, rounds=3).play())) == 3
    assert list(server(tmp_path, link, rounds=3).play()) == []
    assert [c.line["round"] for c in server(tmp_path, link, rounds=5).play()] == [4, 5]


def test_absent_and_rejected_are_told_apart_and_both_count_as_not_heard(tmp_path):
    def answer(order, body):
        if order.client == 1:
            return []
        return [Arrival("", order.node, body._replace(loss=float("nan")))] if order.client == 2 else None

    link = InProcess(TASK, [0, 1, 2, 3], answer)
    s = server(tmp_path, link, rounds=1)
    (closed,) = s.play()
    assert closed.line["heard"] == [0, 3]
    assert closed.line["absent"] == [1]
    assert closed.line["rejected"] == {"2": "the loss is not a finite number"}
    assert closed.state.counts.rejected.tolist() == [0, 0, 1, 0, 0, 0]
    assert belief_of(closed) == observed([0, 3])


def test_the_deadline_ends_a_round_and_who_leaves_is_not_waited_for(tmp_path):
    link = InProcess(TASK, range(N), lambda order, body: [] if order.client == 1 else None)
    (closed,) = server(tmp_path / "slow", link, rounds=1, round={"deadline": 30.0, "poll": 1.0}).play()
    assert 30.0 <= closed.line["seconds"] <= 31.0
    link.there.remove(1)
    link.answer, online = lambda order, body: [] if order.client == 2 else None, link.online
    looks = iter([True] + [False] * 99)  # client 2 is there for the first look only
    link.online = lambda: {k: v for k, v in online().items() if k != NODES + 2 or next(looks)}
    (closed,) = server(tmp_path / "gone", link, rounds=1, round={"deadline": 30.0}).play()
    assert closed.line["absent"] == [2]
    assert closed.line["seconds"] < 5


def test_an_infrastructure_failure_makes_the_round_void_and_nothing_is_observed(tmp_path):
    rows, link = table(4), InProcess(TASK, range(N))
    whole = played(server(tmp_path / "whole", link), link, rows)[-1]
    troubles = iter([LinkDown("gone"), None, "lost", None, "refused"])

    class Shaky(InProcess):
        def send(self, orders, ttl):
            trouble = next(troubles, None)
            if isinstance(trouble, Exception):
                raise trouble
            handles = super().send(orders, ttl)
            if trouble == "lost":
                self.inbox[handles[0]] = [Arrival(handles[0], None, None, Fault.infrastructure, "lost")]
            return [None, *handles[1:]] if trouble == "refused" else handles

    shaky = Shaky(TASK, range(N))
    last = played(server(tmp_path / "shaky", shaky, round={"group": 9}), shaky, rows)[-1]
    assert last.state.voids == 3
    assert last.line["fingerprint"] == whole.line["fingerprint"]
    assert belief_of(last) == belief_of(whole)
    assert last.state.counts.rounds.tolist() == [4] * N


def test_a_round_without_quorum_is_void_and_too_many_of_them_stop_the_server(tmp_path):
    link = InProcess(TASK, range(N), lambda order, body: [])
    s = server(tmp_path, link, round={"quorum": 2, "retries": 2})
    with pytest.raises(Stalled, match="round 1 was void 3 times"):
        next(s.play())
    assert s.ledger.load().checkpoint.t == 0


def test_without_a_quorum_online_the_round_does_not_begin(tmp_path):
    link = InProcess(TASK, [0])
    sleep, waits = link.sleep, []

    def patient(seconds):
        waits.append(seconds)
        link.there = [0] if len(waits) < 5 else [0, 1]
        sleep(seconds)

    link.sleep = patient
    (closed,) = server(tmp_path, link, rounds=1, round={"quorum": 2}).play()
    assert closed.line["heard"] == [0, 1]
    assert len(waits) == 5


def test_a_huge_update_is_rejected_even_in_the_first_round(tmp_path):
    def answer(order, body):
        return [Arrival("", order.node, scaled(body, 1e20))] if order.client == 3 else None

    (closed,) = server(tmp_path, InProcess(TASK, range(N), answer), rounds=1).play()
    assert closed.line["rejected"]["3"].startswith("its norm is out of proportion")
    assert closed.line["heard"] == [0, 1, 2, 4, 5]


def test_only_the_first_of_two_answers_counts_and_strays_touch_nothing(tmp_path):
    def answer(order, body):
        mine = Arrival("", order.node, body)
        return [mine, mine, Arrival("never sent", order.node, body)] if order.client == 0 else None

    link = InProcess(TASK, range(N), answer)
    s = server(tmp_path, link, rounds=1)
    (closed,) = s.play()
    assert closed.line["heard"] == list(range(N))
    assert closed.line["rejected"] == {"0": "duplicate"}
    assert np.array_equal(closed.state.checkpoint.params, simulated(s.settings, np.ones((1, N), bool)))


def test_joins_and_departures_take_effect_between_rounds(tmp_path):
    link, rosters = InProcess(TASK, range(N)), [roster_of(range(4), 1)]
    s = Server(made(tmp_path), link, lambda: rosters[-1], TASK.init)
    play = s.play()
    for _ in range(2):
        closed = next(play)
    before = memory_of(closed.state).rows
    link.answer = lambda order, body: [] if order.client != 0 else None  # so that the rows stay
    rosters.append(roster_of([0, 2, 3, 5], 2))  # 1 leaves, 5 joins: as many as before
    link.there = [0, 2, 3]
    closed = next(play)
    memory, state = memory_of(closed.state), closed.state
    assert state.ids.tolist() == [0, 2, 3, 5]
    assert closed.line["heard"] == [0]
    assert np.array_equal(memory.rows[1:3], before[2:4])
    assert not memory.rows[3].any()
    assert memory.written.tolist() == [3, 2, 2, 0]
    assert np.allclose(memory.total, np.full(4, 0.25) @ memory.rows, atol=1e-7)
    assert state.counts.rounds.tolist() == [3, 3, 3, 1]
    assert trace(read_metrics(s.ledger.path))[0] == [f"client-{i}" for i in (0, 1, 2, 3, 5)]
    again = s.ledger.load()
    assert np.array_equal(memory_of(again).rows, memory.rows)
    assert np.array_equal(memory_of(again, shadow=True).rows, memory_of(state, shadow=True).rows)
    play.close()


def test_the_rounds_of_a_newcomer_count_from_when_it_joined(tmp_path):
    """A client that was there in every round since it joined has p = 1, and no less on resume."""
    link, rosters = InProcess(TASK, range(N)), [roster_of(range(4), 1)]
    s = Server(made(tmp_path, rounds=12), link, lambda: rosters[-1], TASK.init)
    play = s.play()
    for _ in range(9):
        next(play)
    rosters.append(roster_of(range(5), 2))
    closed = next(play)
    assert s.rules.estimator.probs(closed.state.checkpoint.belief).tolist() == [1.0] * 5
    play.close()
    again = Server(made(tmp_path, rounds=12), link, lambda: rosters[-1], TASK.init)
    link.there, play = [0, 1, 2, 3], again.play()
    next(play)
    link.there = list(range(5))
    belief = next(play).state.checkpoint.belief
    assert np.allclose(again.rules.estimator.probs(belief), [1, 1, 1, 1, 2 / 3])  # two intervals in three rounds
    play.close()


def test_the_memory_sum_with_and_without_a_leaver_is_what_was_always_a_smaller_federation(tmp_path):
    """After client 5 leaves, the stale part is that of the others alone."""
    link, rosters = InProcess(TASK, range(N)), [roster_of(range(N), 1)]
    s = Server(made(tmp_path), link, lambda: rosters[-1], TASK.init)
    play = s.play()
    closed = next(play)
    rosters.append(roster_of(range(5), 2))
    link.there = list(range(5))
    closed = next(play)
    memory = memory_of(closed.state)
    assert memory.rows.shape[0] == 5
    assert np.allclose(memory.total, np.full(5, 0.2) @ memory.rows, atol=1e-7)
    play.close()


def test_a_strategy_that_selects_asks_for_losses_first(tmp_path):
    class Loudest:
        """The two clients with the largest loss train."""

        inverse_weighting = False

        def init(self, n, d):
            return None

        def select(self, state, a):
            return np.sort(a.clients[np.argsort(-a.losses)[:2]]), state

        def aggregate(self, state, r):
            return r.updates.mean(axis=0), state

    link = InProcess(TASK, [0, 1, 2, 4])
    s = server(tmp_path, link, rounds=1)
    s.rules = s.rules._replace(strategy=Loudest())
    (closed,) = s.play()
    assert len(closed.line["asked"]) == 2
    assert sorted(closed.line["asked"] + closed.line["idle"]) == [0, 1, 2, 4]
    assert belief_of(closed) == observed([0, 1, 2, 4])  # idle counts as heard


def test_p_stays_near_the_truth_when_clients_vanish(tmp_path):
    """30 % vanish each round, half before and half while they work; links fail now and then besides."""
    count, rng, gone = 300, np.random.default_rng(5), set()
    link = InProcess(TASK, range(N), lambda order, body: [] if order.client in gone else None)
    s = server(tmp_path, link, rounds=count, strategy="fedavg", round={"deadline": 2.0, "quorum": 0})
    send, heard, play = link.send, np.zeros(N), s.play()
    link.send = lambda orders, ttl: send(orders, ttl) if rng.random() > 0.02 else _down()
    for _ in range(count):
        away = np.flatnonzero(rng.random(N) < 0.3)
        gone.clear()
        gone.update(away[::2].tolist())
        link.there = sorted(set(range(N)) - set(away[1::2].tolist()))
        closed = next(play)
        heard[closed.line["heard"]] += 1
    play.close()
    p = s.rules.estimator.probs(closed.state.checkpoint.belief)
    assert closed.state.voids > 0
    assert np.abs(p / (heard / count) - 1).max() < 0.01  # what was realised
    assert abs(p.mean() / 0.7 - 1) < 0.05  # the standard error of 1800 coins is 1.5 %


def _down():
    raise LinkDown("now and then")


def test_the_status_and_the_trace_tell_what_happened(tmp_path):
    rows, link = table(8), InProcess(TASK, range(N))
    s = server(tmp_path, link)
    state = played(s, link, rows)[-1].state
    clients = status(state, s.rules.estimator)["clients"]
    assert [c["heard"] for c in clients] == rows.sum(axis=0).tolist()
    assert all(c["p_low"] <= c["heard"] / 8 <= c["p_high"] for c in clients)
    assert [c["asked"] for c in clients] == rows.sum(axis=0).tolist()
    assert [c["staleness"] for c in clients] == [8 - max(np.flatnonzero(row)) - 1 for row in rows.T]
    fedavg = server(tmp_path / "fedavg", link, strategy="fedavg")
    realised = [
        c["weight_realised"]
        for c in status(played(fedavg, link, rows)[-1].state, fedavg.rules.estimator)["clients"]
    ]
    assert realised == pytest.approx(plain_weights(rows), abs=1e-6)
    assert [c["weight_target"] for c in clients] == [pytest.approx(1 / 6, abs=1e-6)] * N
    write_trace(tmp_path / "trace.csv", *trace(read_metrics(s.ledger.path)))
    assert np.array_equal(Trace(tmp_path / "trace.csv").matrix, rows)


@pytest.mark.parametrize(("small", "size"), [(16 << 20, 6), (9 * 4 * TASK.d // 2, 4), (0, 3)])
def test_small_messages_travel_many_at_once_and_large_ones_in_groups(tmp_path, monkeypatch, small, size):
    """As many as fit into so many bytes, and no fewer than `group`."""
    monkeypatch.setattr(exchange, "SMALL", small)
    link, sizes = InProcess(TASK, range(N)), []
    for name in ("send", "pull"):
        whole = getattr(link, name)
        monkeypatch.setattr(link, name, lambda of, *more, whole=whole: (sizes.append(len(of)), whole(of, *more))[1])
    played(server(tmp_path, link, round={"group": 3}), link, np.ones((1, N), bool))
    assert max(sizes) == size


def test_scaffold_sends_its_drift_with_the_order(tmp_path):
    pytest.importorskip("fedstale.strategies.scaffold")
    from fedstale.core import Local
    from fedstale.engines import Serial
    from fedstale.simulate import simulate
    from fedstale.strategies.scaffold import Scaffold

    rows, link = table(5), InProcess(TASK, range(N))
    s = server(tmp_path, link)
    s.rules = s.rules._replace(strategy=Scaffold())
    last = played(s, link, rows)[-1]
    *_, same = simulate(
        Serial(TASK, Local(**LOCAL)),
        Scaffold(),
        Trace(rows),
        rounds=5,
        seed=1,
        estimator=s.rules.estimator,
        defence=s.rules.defence,
    )
    assert np.array_equal(last.state.checkpoint.params, same.params)
    again, controls = server(tmp_path, link), last.state.checkpoint.state.rows
    again.rules = s.rules
    assert np.array_equal(again.ledger.load().checkpoint.state.rows, controls)
    _keep_rows_in_files(tmp_path / "state", last.state, "/0/2/0")
    assert np.array_equal(again.ledger.load().checkpoint.state.rows, controls)


def _keep_rows_in_files(folder, state, path):
    """The state as an earlier version wrote it: also the rows of an array in files of their own."""
    arrays, files = arrays_of(state), {}
    for i, row in enumerate(arrays[path]):
        np.save(place := folder / f"{i}.npy", row)
        files[str(i)] = [place.name, checksum(place)]
    RunFolder(folder).save_checkpoint(with_arrays(state, arrays | {path: arrays[path][:0]}, state))
    core = ["checkpoint.npz", checksum(folder / "checkpoint.npz")]
    write_manifest(folder, read_manifest(folder) | {"rows": {path: files}, "checkpoint": core})


@pytest.mark.parametrize(("few", "many"), [(9, 3), (3, 9)])
def test_a_federation_goes_on_as_it_began_when_it_grows_past_what_is_traced(tmp_path, monkeypatch, few, many):
    link = InProcess(TASK, range(N))
    monkeypatch.setattr(rounds, "TRACED", few)
    played(server(tmp_path, link), link, table(1))
    monkeypatch.setattr(rounds, "TRACED", many)
    assert next(server(tmp_path, link).play()).line["round"] == 2


def test_an_empty_roster_is_refused(tmp_path):
    empty = roster_of([0]).left(0)
    with pytest.raises(BadInput, match="must have a client"):
        next(Server(made(tmp_path), InProcess(TASK, []), lambda: empty, TASK.init).play())


def test_status_does_not_call_a_silent_client_present(tmp_path):
    """A client that came once and then never again, and one that never came."""
    rows = np.ones((8, N), bool)
    rows[1:, 0] = rows[:, 1] = False
    link = InProcess(TASK, range(N))
    s = server(tmp_path, link)
    silent, never, always, *_ = status(played(s, link, rows)[-1].state, s.rules.estimator)["clients"]
    assert (silent["p"], never["p"], always["p"]) == (0.125, 0, 1)
    assert silent["p_used"] == never["p_used"] == 1  # what FedAU's estimator says until an interval closes
    for row in (silent, never, always):
        assert row["p_low"] <= row["p"] <= row["p_high"]
    assert never["p_high"] < 0.4


def test_orders_without_an_answer_are_given_up(tmp_path):
    link = InProcess(TASK, range(N), answer=lambda order, body: [] if order.client == 2 else None)
    play = server(tmp_path, link).play()
    next(play)
    assert len(link.forgotten) == 1
    next(play)
    assert len(link.forgotten) == 2
    play.close()


def test_with_a_target_more_are_asked_and_the_round_closes_when_enough_have_answered(tmp_path):
    """Three of four answers count; a client that was late or not asked was not heard, for the estimator too."""
    link = InProcess(TASK, range(N), answer=lambda order, body: [] if order.client == 1 else None)
    s = server(tmp_path, link, strategy="fedavg", defence=False, round={"target": 3, "ask": 1.3, "group": 1})
    rounds = played(s, link, np.ones((8, N), bool))
    lines = [closed.line for closed in rounds]
    for line in lines:
        assert (len(line["asked"]), len(line["heard"]), len(line["late"])) == (4, 3, 1)
        assert sorted(line["late"] + line["heard"]) == line["asked"]
        assert 1 not in line["asked"] or line["late"] == [1]
        assert line["absent"] == []
    assert len({tuple(line["asked"]) for line in lines}) > 3
    assert len({tuple(line["late"]) for line in lines}) > 1
    assert len(link.forgotten) == 8
    heard = np.array([np.isin(range(N), line["heard"]) for line in lines])
    assert np.array_equal(rounds[-1].state.checkpoint.params, simulated(s.settings, heard))
    belief = s.rules.estimator.init(N)
    for row in heard:
        belief = s.rules.estimator.observe(belief, row)
    found = s.rules.estimator.probs(rounds[-1].state.checkpoint.belief)
    assert np.array_equal(found, s.rules.estimator.probs(belief))


def test_a_target_is_no_reason_to_wait_for_clients_that_are_not_there(tmp_path):
    link = InProcess(TASK, range(N))
    rows = np.zeros((1, N), bool)
    rows[0, :2] = True
    (closed,) = played(server(tmp_path, link, round={"target": 3, "ask": 1.5}), link, rows)
    assert closed.line["heard"] == [0, 1]
    assert closed.line["late"] == []
