"""The loop: what it promises to every algorithm, and what it refuses."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstale.channels import Lossless
from fedstale.core import (
    NOBODY,
    Array,
    Availability,
    BadInput,
    Hooks,
    Ids,
    Job,
    Local,
    Mask,
    Reply,
    Round,
    Snapshot,
    Strategy,
    evaluate,
    hooks_of,
    part,
)
from fedstale.core.rng import stream
from fedstale.engines import Serial
from fedstale.participation import Bernoulli, Cyclic, TwoGroups
from fedstale.participation.estimators import Intervals, Known
from fedstale.simulate import Diverged, Run, play, simulate, together
from fedstale.simulate.round import NOT_FINITE, SMALL, Refusals, finite_rows
from fedstale.simulate.servers import Adam, Momentum, Sgd
from fedstale.strategies import MIFA, CAFed, FedAvg, FedStale, FedVARP, Unbiased
from fedstale.tasks.quadratic import Quadratic

TASK = Quadratic.random(5, 3, seed=1, noise=0.1)
ENGINE = Serial(TASK, Local(0.05, steps=2, decay=0.01))
TASKLESS = Serial(TASK, ENGINE.local)
object.__setattr__(TASKLESS, "task", object())


@part
class Cut:
    """Half of the clients that are sent to are reached, and of their updates half of the coordinates arrive.

    Its state counts the rounds, so that a resumed run shows whether it was handed over.
    """

    def probs(self, n: int, d: int) -> Array:
        return np.full(n, 0.5 * (1 - 0.5**d), np.float32)

    def share(self, n: int, d: int) -> Array:
        return np.full(n, 0.5 / (1 - 0.5**d), np.float32)

    def init(self, n: int, streams: object) -> int:
        return 0

    def downlink(self, state: int, clients: Ids, streams: object) -> tuple[Mask, int]:
        return (streams("down").random(TASK.n) < 0.5)[clients], state + 1

    def uplink(self, state: int, clients: Ids, d: int, streams: object) -> tuple[Mask, int]:
        return (streams("up", state).random((TASK.n, d)) < 0.5)[clients], state


@part
class Loudest:
    """Those of the available with the highest losses train; its state is how often each was asked."""

    count: int = 1

    def init(self, n: int, d: int) -> Array:
        return np.zeros(n, np.float32)

    def select(self, state: Array, a: Availability) -> tuple[Ids, Array]:
        asked = state.copy()
        asked[a.clients] += 1
        return np.sort(a.clients[np.argsort(-a.losses, kind="stable")[: self.count]]), asked

    def aggregate(self, state: Array, r: Round) -> tuple[Array, Array]:
        return r.received().sum(axis=0).astype(np.float32), state


@part
class Drifting:
    """Adds client number + rounds so far to every gradient."""

    def init(self, n: int, d: int) -> Array:
        return np.zeros(d, np.float32)

    def drift(self, state: Array, clients: Ids) -> Array:
        return (clients[:, None] + state[None, :]).astype(np.float32)

    def aggregate(self, state: Array, r: Round) -> tuple[Array, Array]:
        return np.zeros_like(r.params), state + 1


@part
class Explodes:
    """FedAvg until a round, then infinity."""

    at: int

    def init(self, n: int, d: int) -> None:
        return None

    def aggregate(self, state: None, r: Round) -> tuple[Array, None]:
        step, _ = FedAvg().aggregate(None, r)
        return (np.full_like(step, np.inf) if r.t == self.at else step), None


@dataclass
class Listening:
    """A strategy that also keeps the rounds it was given."""

    strategy: Strategy
    rounds: list[Round] = field(default_factory=list)

    def hooks(self) -> Hooks:
        return hooks_of(self.strategy)

    def init(self, n: int, d: int) -> object:
        return self.strategy.init(n, d)

    def aggregate(self, state: object, r: Round) -> tuple[Array, object]:
        self.rounds.append(r)
        return self.strategy.aggregate(state, r)


@dataclass
class Recording:
    """An engine that keeps its jobs, and puts `poison` in the updates or losses of some clients."""

    engine: Serial = ENGINE
    jobs: list[Job] = field(default_factory=list)
    bad: dict[int, tuple[str, float]] = field(default_factory=dict)
    task = property(lambda self: self.engine.task)
    local = property(lambda self: self.engine.local)

    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        self.jobs += jobs
        replies = self.engine.train(jobs)
        for job, reply in zip(jobs, replies, strict=True):
            for k, client in enumerate(job.clients.tolist()):
                name, poison = self.bad.get(client, ("losses", None))
                if poison is not None:
                    getattr(reply, name)[k, ...] = (
                        np.where(np.arange(3) == 1, poison, 0) if name == "updates" else poison
                    )
        return replies

    def losses(self, job: Job) -> Array:
        return self.engine.losses(job)


def same(first: Sequence[Snapshot], second: Sequence[Snapshot]) -> None:
    assert len(first) == len(second)
    for x, y in zip(first, second, strict=True):
        for name in ("t", "params", "step", "available", "chosen", "clients", "refused", "losses", "probs"):
            np.testing.assert_array_equal(getattr(x, name), getattr(y, name), err_msg=f"{name} of round {x.t}")


def run_of(rounds: int, seed: int = 0, **parts: object) -> Run:
    return Run(
        ENGINE, **{"strategy": FedStale(), "participation": Bernoulli(0.5), **parts}, rounds=rounds, seed=seed
    )


def alone(run: Run) -> list[Snapshot]:
    """A run's snapshots; the last is left out if it diverges."""
    engine, strategy, participation, *_ = run
    rest = {"server": run.server, "estimator": run.estimator, "channel": run.channel}
    snapshots = simulate(engine, strategy, participation, rounds=run.rounds, seed=run.seed, **rest)
    seen: list[Snapshot] = []
    try:
        for s in snapshots:
            seen.append(s._replace(checkpoint=pickle.loads(pickle.dumps(s.checkpoint))))
    except Diverged:
        pass
    return seen


runs = st.builds(
    run_of,
    rounds=st.integers(1, 8),
    seed=st.integers(0, 1000),
    strategy=st.sampled_from([FedAvg(), Unbiased(), FedStale(0.7), FedVARP(), MIFA(), Loudest(2), Drifting()]),
    participation=st.sampled_from([Bernoulli(0.5), Bernoulli([0.1, 0.5, 0.9, 1, 1]), TwoGroups(0.2)]),
    server=st.sampled_from([Sgd(1.0), Momentum(0.5), Adam()]),
    estimator=st.sampled_from([Known(), Known([0.5] * 5), Intervals(4)]),
    channel=st.sampled_from([Lossless(), Cut()]),
)


@settings(max_examples=40)
@given(runs, st.integers(1, 8))
def test_a_longer_run_extends_a_shorter_one(run: Run, more: int) -> None:
    longer = alone(run._replace(rounds=run.rounds + more))
    same(longer[: run.rounds], alone(run))


@settings(max_examples=40)
@given(runs, st.data())
def test_resuming_equals_never_stopping(run: Run, data: st.DataObject) -> None:
    whole = alone(run)
    at = data.draw(st.integers(1, run.rounds))
    stored = pickle.loads(pickle.dumps(whole[at - 1].checkpoint))
    assert stored.t == at
    same([snapshots[0] for snapshots in together(ENGINE, [play(run, stored)])], whole[at:])


@settings(max_examples=30)
@given(st.lists(runs, min_size=1, max_size=4), st.integers(1, 6))
def test_together_equals_alone(several: list[Run], at: int) -> None:
    """Runs of different lengths, and one that diverges on the way."""
    several = [*several, run_of(8, strategy=Explodes(at))]
    seen: list[list[Snapshot]] = [[] for _ in several]
    stopped = []
    for done in together(ENGINE, [play(run) for run in several]):
        for k, snapshot in done.items():
            stopped += [(k, str(snapshot))] if isinstance(snapshot, Diverged) else []
            seen[k] += [] if isinstance(snapshot, Diverged) else [snapshot]
    assert [len(s) for s in seen] == [*(run.rounds for run in several[:-1]), at - 1]
    ((k, sentence),) = stopped
    assert k == len(several) - 1
    assert sentence.startswith(f"round {at}: the step ")
    for run, snapshots in zip(several, seen, strict=True):
        same(snapshots, alone(run))


def test_together_trains_all_runs_in_one_call() -> None:
    calls: list[int] = []

    class Counting(Recording):
        def train(self, jobs: Sequence[Job]) -> list[Reply]:
            calls.append(len(jobs))
            return super().train(jobs)

    for _ in together(Counting(), [play(run_of(rounds)) for rounds in (1, 3, 2)]):
        pass
    assert calls == [3, 2, 1]


def test_a_run_that_diverges_stops_with_a_sentence() -> None:
    snapshots = simulate(ENGINE, Explodes(3), Bernoulli(1.0), rounds=9)
    assert [s.t for s in islice(snapshots, 2)] == [1, 2]
    with pytest.raises(Diverged, match=r"round 3: the step .*not finite"):
        next(snapshots)


def test_parameters_that_overflow_stop_the_run() -> None:
    """A step that is finite may still be too large for what it is added to."""

    class Leaps(Recording):
        def train(self, jobs: Sequence[Job]) -> list[Reply]:
            return [Reply(np.full((len(j.clients), 3), 3e38, np.float32), np.zeros(5, np.float32)) for j in jobs]

    snapshots = simulate(Leaps(), FedAvg(), Bernoulli(1.0), rounds=9)
    assert np.isfinite(next(snapshots).params).all()
    with pytest.raises(Diverged, match=r"round 2: .*not finite"):
        next(snapshots)


def test_a_round_in_which_all_are_refused_stops_the_run() -> None:
    engine = Recording(bad=dict.fromkeys(range(5), ("updates", np.nan)))
    with pytest.raises(Diverged, match=r"round 1: no update is finite"):
        list(simulate(engine, FedAvg(), Bernoulli(1.0), rounds=2))
    with pytest.raises(Diverged, match=r"round 1: no update is finite"):
        next(simulate(engine, FedAvg(), Bernoulli([0, 0, 1, 1, 0]), rounds=2))
    s = next(simulate(engine, FedAvg(), Bernoulli([0, 0, 1, 0, 0]), rounds=2))  # one client may be ill
    assert s.refused.tolist() == [2]


def test_a_run_whose_updates_are_refused_one_by_one_stops() -> None:
    engine = Recording(bad=dict.fromkeys(range(5), ("updates", np.nan)))
    seen = simulate(engine, FedAvg(), Cyclic(5, 1, 4), rounds=30)
    assert [s.t for s in islice(seen, 9)] == [*range(1, 10)]
    with pytest.raises(Diverged, match="round 10: the last 10 updates are not finite"):
        next(seen)


def test_a_run_in_which_no_update_is_ever_used_does_not_return_its_start() -> None:
    engine = Recording(bad=dict.fromkeys(range(5), ("updates", np.nan)))
    with pytest.raises(Diverged, match="round 3: no update was used in any round, 3 were refused"):
        list(simulate(engine, FedAvg(), Cyclic(5, 1, 4), rounds=3))
    some = Recording(bad=dict.fromkeys(range(4), ("updates", np.nan)))
    assert len(list(simulate(some, FedAvg(), Cyclic(5, 1, 4), rounds=30))) == 30, "one in five is used"


def test_a_rule_that_selects_sends_the_parameters_to_all_who_are_there_and_hears_their_losses() -> None:
    for s in simulate(ENGINE, Loudest(), TwoGroups(0.4), rounds=6):
        assert s.bytes_down == 4 * TASK.d * len(s.available)
        assert s.bytes_up == 4 * (TASK.d * len(s.chosen) + len(s.available))


def test_a_resumed_run_whose_last_updates_are_refused_has_learned_before() -> None:
    *_, before = simulate(Recording(), FedAvg(), Cyclic(5, 1, 4), rounds=2)
    engine = Recording(bad=dict.fromkeys(range(5), ("updates", np.nan)))
    rest = list(simulate(engine, FedAvg(), Cyclic(5, 1, 4), rounds=4, start=before.checkpoint))
    assert [s.t for s in rest] == [3, 4]


def test_an_update_that_the_defence_refuses_is_finite_all_the_same() -> None:
    none = np.zeros((0, 1), np.float32)
    seen, round_of = Refusals(used=True), Round(1, none, NOBODY, none, none > 0, none[:, 0], none, none)
    for t in range(1, 30):
        why = {0: NOT_FINITE, 1: "a lie"} if t % 5 == 0 else {0: NOT_FINITE}
        seen.after(round_of._replace(t=t, refused=why), last=False)
    assert seen.streak == 4, "only rounds since the last finite update count"


@settings(max_examples=25)
@given(st.integers(0, 1000), st.sampled_from([Lossless(), Cut()]))
def test_the_same_seed_is_the_same_luck_for_every_algorithm(seed: int, channel: object) -> None:
    rules = [FedAvg(), FedStale(), MIFA(), FedVARP(), Unbiased()]
    first, *others = (alone(run_of(6, seed, strategy=rule, channel=channel)) for rule in rules)
    for other in others:
        for x, y in zip(first, other, strict=True):
            np.testing.assert_array_equal(x.available, y.available)
            np.testing.assert_array_equal(x.clients, y.clients)
    chosen = alone(run_of(6, seed, strategy=Loudest(1), channel=channel))
    for x, y in zip(first, chosen, strict=True):
        np.testing.assert_array_equal(x.available, y.available)
        assert set(y.clients) == set(y.chosen) & set(x.clients)  # who was chosen changes not who is lost


def test_rows_are_those_of_the_participation_stream() -> None:
    rows = Bernoulli(0.5).rows(5, stream(3, "participation"))
    for s, row in zip(alone(run_of(6, seed=3)), rows, strict=False):
        np.testing.assert_array_equal(s.available, np.flatnonzero(row))


def test_rounds_by_hand() -> None:
    """Everybody, no noise, one local step: w ← w + η_s (-η_c) Σ a_i A_i (w - c_i), t = 1, 2, …"""
    task = Quadratic([[1.0, 0.0], [0.0, 2.0]], [[1, 2], [3, 1]], weights=[1, 3])
    w, engine = np.zeros(2), Serial(task, Local(0.1, steps=1, decay=0.5))
    for t, s in enumerate(simulate(engine, FedAvg(), Bernoulli(1.0), rounds=5, server=Sgd(0.5)), 1):
        slope = 0.25 * task.curvature[0] * (w - task.centers[0]) + 0.75 * task.curvature[1] * (w - task.centers[1])
        w = w - 0.5 * 0.1 / (1 + 0.5 * t) * slope
        assert s.t == t == s.checkpoint.t
        np.testing.assert_allclose(s.params, w, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(s.probs, 1)
        np.testing.assert_array_equal(s.clients, [0, 1])
        assert s.params.dtype == np.float32


def test_the_server_remembers_its_steps() -> None:
    """v ← 0.5 v + step; w ← w + v: what it keeps is handed from round to round."""
    v, w = np.zeros(3), TASK.init(0)
    for s in simulate(ENGINE, FedAvg(), Bernoulli(0.5), rounds=6, server=Momentum(1.0, 0.5)):
        v = 0.5 * v + s.step
        w = w + v
        np.testing.assert_allclose(s.params, w, rtol=1e-5, atol=1e-6)


def test_fedstale_finds_the_optimum_and_fedavg_another_point() -> None:
    """With heterogeneous p the unbiased rule is near the objective's optimum, FedAvg is not."""
    task = Quadratic([[-1.0], [1.0]])
    engine = Serial(task, Local(0.02, steps=1))

    def tail(rule: Strategy) -> float:
        run = simulate(engine, rule, Bernoulli([1.0, 0.2]), rounds=1500, seed=1)
        return float(np.mean([s.params[0] for s in run][500:]))

    assert abs(tail(FedStale(0.5))) < 0.1
    assert tail(FedAvg()) < -0.5


def test_jobs_are_those_of_the_round() -> None:
    engine = Recording()
    seen = list(simulate(engine, FedStale(), Bernoulli(0.5), rounds=6, seed=4, channel=Cut()))
    before = [TASK.init(4), *(s.params for s in seen)]
    for job, s, params in zip(engine.jobs, seen, before, strict=False):
        assert (job.t, job.seed, job.local, job.drift) == (s.t, 4, ENGINE.local, None)
        np.testing.assert_array_equal(job.params, params)
        assert set(s.clients) <= set(job.clients) <= set(s.available)
    assert any(len(job.clients) < len(s.available) for job, s in zip(engine.jobs, seen, strict=True))


def test_a_run_may_have_its_own_local_settings() -> None:
    local, engine = Local(0.2, steps=4, decay=0.5), Recording()
    rule = Listening(FedAvg())
    list(together(engine, [play(Run(engine, rule, Bernoulli(1.0), rounds=2, local=local))]))
    assert [job.local for job in engine.jobs] == [local, local]
    assert [float(r.work.rates[0]) for r in rule.rounds if r.work] == pytest.approx([4 * 0.2 / 1.5, 4 * 0.2 / 2])


def test_the_belief_of_a_round_is_from_the_rounds_before() -> None:
    estimator = Intervals(3)
    belief = estimator.init(5)
    for s in alone(run_of(20, strategy=Unbiased(), estimator=estimator, channel=Cut())):
        share = Cut().share(5, TASK.d)
        np.testing.assert_array_equal(s.probs, estimator.probs(belief) * share)
        belief = estimator.observe(belief, np.isin(np.arange(5), s.clients))


def test_known_probabilities_are_those_of_a_coordinate() -> None:
    """Available, reached, and the coordinate arrived."""
    s, *_ = alone(run_of(1, participation=Bernoulli([0.2, 0.4, 0.6, 0.8, 1]), channel=Cut()))
    np.testing.assert_allclose(s.probs, np.array([0.2, 0.4, 0.6, 0.8, 1]) * 0.5 * 0.5, rtol=1e-6)


def test_rounds_hold_what_arrived() -> None:
    rule, engine = Listening(Unbiased()), Recording()
    seen = list(simulate(engine, rule, Bernoulli(0.8), rounds=40, seed=2, channel=Cut()))
    reached = [job.clients.tolist() for job in engine.jobs]
    for r, s in zip(rule.rounds, seen, strict=True):
        wanted = stream(2, "channel", s.t, "up", s.t).random((5, 3)) < 0.5
        np.testing.assert_array_equal(r.arrived, wanted[r.clients])
        assert r.arrived.any(axis=1).all()
        assert r.updates.shape == (len(r.clients), 3)
        np.testing.assert_array_equal(r.clients, s.clients)
        assert set(s.clients) == {i for i in range(5) if i in reached[s.t - 1] and wanted[i].any()}
    assert any(not r.arrived.all() for r in rule.rounds)
    assert sum(map(len, reached)) > sum(len(s.clients) for s in seen)  # of some, nothing arrived


class Watched(np.ndarray):
    """Updates that refuse a product: BLAS would compute it with all the threads of the machine."""

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **how: Any) -> Any:
        assert ufunc not in (np.matmul, np.vecdot), ufunc
        plain = [x.view(np.ndarray) if isinstance(x, Watched) else x for x in given]
        return getattr(ufunc, method)(*plain, **how)


def test_finite_updates_are_told_without_a_product() -> None:
    rows = np.full((5, 4), np.finfo(np.float32).max, np.float32)  # finite, but no sum of them is
    rows[1, 2], rows[2, 0], rows[3, 3] = np.nan, np.inf, -np.inf
    assert finite_rows(rows.view(Watched)).tolist() == [True, False, False, False, True]
    many = np.repeat(rows, 1 << 17, axis=1)  # too many for one look
    assert many.size > SMALL
    assert finite_rows(many.view(Watched)).tolist() == [True, False, False, False, True]
    assert finite_rows(rows[:0]).tolist() == []


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["updates", "losses"])
def test_what_is_not_finite_is_refused_and_the_round_goes_on(poison: float, where: str) -> None:
    rule, engine = Listening(FedStale()), Recording(bad={1: (where, poison), 3: (where, poison)})
    seen = list(simulate(engine, rule, Bernoulli(0.7), rounds=12, seed=1, estimator=Intervals()))
    for r, s in zip(rule.rounds, seen, strict=True):
        np.testing.assert_array_equal(s.refused, [i for i in s.available if i in (1, 3)])
        np.testing.assert_array_equal(r.clients, [i for i in s.available if i not in (1, 3)])
        assert np.isfinite(r.updates).all()
        assert np.isfinite(s.params).all()
        assert len(s.losses) == len(s.clients)
    assert sum(len(s.refused) for s in seen) > 5
    assert (seen[-1].checkpoint.belief.closed[[1, 3]] == 0).all()  # refused is not heard


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_columns_first_updates_are_searched_too(poison: float) -> None:
    class Columns(Recording):
        def train(self, jobs: Sequence[Job]) -> list[Reply]:
            return [r._replace(updates=np.asfortranarray(r.updates)) for r in super().train(jobs)]

    (s,) = simulate(Columns(bad={2: ("updates", poison)}), FedAvg(), Bernoulli(1.0), rounds=1)
    np.testing.assert_array_equal(s.refused, [2])


def test_large_updates_are_not_refused() -> None:
    (s,) = simulate(Recording(bad={2: ("updates", 3e38)}), FedAvg(), Bernoulli(1.0), rounds=1)
    assert len(s.refused) == 0


@pytest.mark.parametrize(
    ("name", "sentence"), [("updates", r"updates must be \(5, 3\)"), ("losses", r"losses must be \(5,\)")]
)
def test_replies_of_the_wrong_shape_are_refused(name: str, sentence: str) -> None:
    class Short(Recording):
        def train(self, jobs: Sequence[Job]) -> list[Reply]:
            return [r._replace(**{name: getattr(r, name)[:-1]}) for r in super().train(jobs)]

    with pytest.raises(BadInput, match=sentence):
        list(simulate(Short(), FedAvg(), Bernoulli(1.0), rounds=1))


def test_a_client_that_never_comes_is_refused_before_any_training() -> None:
    engine = Recording()
    for rule in (Unbiased(), FedStale(0.2)):
        with pytest.raises(BadInput, match=r"must be above 0 and is 0 for 2 of 5 clients \(first: \[1, 3\]\)"):
            simulate(engine, rule, Bernoulli([1, 0, 1, 0, 1]), rounds=5)
    assert engine.jobs == []
    assert len(list(simulate(engine, FedStale(), TwoGroups(0), rounds=5, estimator=Intervals()))) == 5  # learnt
    assert len(list(simulate(engine, FedAvg(), TwoGroups(0), rounds=5))) == 5


@pytest.mark.parametrize("rounds", [0, -1, 2.0])
def test_rounds_are_checked(rounds: int) -> None:
    with pytest.raises(BadInput, match=f"rounds must be a whole number of at least 1, got {rounds}"):
        simulate(ENGINE, FedAvg(), Bernoulli(1.0), rounds=rounds)


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ({"server": Sgd}, r"server must be an object such as Sgd\(1.0\), got the class Sgd"),
        ({"server": 0.1}, r"server must be an object such as Sgd\(1.0\), got 0.1"),
        ({"participation": Bernoulli}, r"participation must be an object such as Bernoulli\(0.5\), got the class"),
        ({"strategy": FedAvg}, r"strategy must be an object such as FedAvg\(\), got the class FedAvg"),
        ({"engine": TASK}, r"engine must be an object such as Serial\(task, Local\(lr=0.05\)\), got a Quadratic"),
        ({"engine": TASKLESS}, "the engine's task must be a task such as .*, got a object"),
        ({"estimator": Known}, r"estimator must be an object such as Known\(\), got the class Known"),
        ({"channel": 0.5}, r"channel must be an object such as Lossless\(\), got 0.5"),
        ({"seed": 1.5}, "seed must be a whole number of at least 0, got 1.5"),
        ({"seed": True}, "seed must be a whole number of at least 0, got True"),
    ],
)
def test_a_part_in_the_wrong_place_is_answered_with_one_sentence(mistake: dict[str, object], sentence: str) -> None:
    parts = {"engine": ENGINE, "strategy": FedAvg(), "participation": Bernoulli(0.5), **mistake}
    with pytest.raises(BadInput, match=f"^{sentence}"):
        simulate(**parts, rounds=1)


def test_a_client_that_never_comes_needs_no_probability_where_all_are_given() -> None:
    there = Bernoulli([1, 0, 1, 0.5, 1])
    given = Known([1, 0, 1, 0.5, 1])
    assert len(list(simulate(ENGINE, Unbiased(), there, rounds=5, estimator=given))) == 5
    with pytest.raises(BadInput, match=r"is 0 for 1 of 5 clients \(first: \[3\]\)"):
        simulate(ENGINE, Unbiased(), there, rounds=5, estimator=Known([1, 0.5, 1, 0, 1]))


def test_a_bad_update_that_was_lost_is_not_refused() -> None:
    """The server never saw it."""

    @part
    class Muted:
        def probs(self, n: int, d: int) -> Array:
            return np.ones(n, np.float32)

        def share(self, n: int, d: int) -> Array:
            return np.ones(n, np.float32)

        def init(self, n: int, streams: object) -> None:
            return None

        def downlink(self, state: None, clients: Ids, streams: object) -> tuple[Mask, None]:
            return np.ones(len(clients), np.bool_), None

        def uplink(self, state: None, clients: Ids, d: int, streams: object) -> tuple[Mask, None]:
            return (clients != 1)[:, None], None

    engine = Recording(bad={1: ("updates", np.nan), 2: ("updates", np.nan)})
    (s,) = simulate(engine, FedAvg(), Bernoulli(1.0), rounds=1, channel=Muted())
    assert s.refused.tolist() == [2]


def test_a_snapshot_prints_in_a_line() -> None:
    (s,) = simulate(ENGINE, FedStale(), Bernoulli(1.0), rounds=1)
    assert repr(s).startswith("Snapshot(t=1, params=float32[3], step=float32[3], available=[0, 1, 2, 3, 4], ")
    assert len(repr(s)) < 400
    assert len(repr(s.checkpoint)) < 150


def test_parts_that_do_not_fit_the_task_are_refused_at_once() -> None:
    with pytest.raises(BadInput, match="5 clients need 5 probabilities, got 2"):
        simulate(ENGINE, FedAvg(), Bernoulli([0.5, 0.5]), rounds=1)
    with pytest.raises(BadInput, match="5 clients, got 1"):
        simulate(ENGINE, FedAvg(), Bernoulli(0.5), rounds=1, estimator=Known([0.5]))


def test_select_is_honoured() -> None:
    engine, estimator = Recording(), Intervals(50)
    run = Run(engine, Loudest(2), Bernoulli(0.7), rounds=15, seed=5, estimator=estimator)
    params, asked, there = TASK.init(5), np.zeros(5), np.zeros(5)
    for done in together(engine, [play(run)]):
        s = done[0]
        losses = ENGINE.losses(Job(params, s.available, 5, s.t, ENGINE.local))
        wanted = sorted(s.available[np.argsort(-losses, kind="stable")[:2]].tolist())
        assert s.chosen.tolist() == wanted == s.clients.tolist() == engine.jobs[-1].clients.tolist()
        asked[s.available] += 1
        there[s.available] += 1
        np.testing.assert_array_equal(s.checkpoint.state, asked)  # what select remembers is handed on
        np.testing.assert_array_equal(s.checkpoint.belief.closed, there)  # available, not chosen: heard
        params = s.params


def test_select_knows_the_belief_and_the_correlation() -> None:
    seen: list[Availability] = []

    class Curious(Loudest):
        def select(self, state: Array, a: Availability) -> tuple[Ids, Array]:
            seen.append(a)
            return super().select(state, a)

    λ = np.array([0.1, 0.2, 0.3, 0.4, 0.5], np.float32)
    list(simulate(ENGINE, Curious(), Bernoulli(0.5), rounds=2, estimator=Known(None, λ)))
    list(simulate(ENGINE, Curious(), Bernoulli(0.5), rounds=1, estimator=Intervals()))
    for a, mixing, p in zip(seen, [λ, λ, np.zeros(5)], [0.5, 0.5, 1], strict=True):
        np.testing.assert_array_equal(a.mixing, mixing)
        np.testing.assert_array_equal(a.probs, np.full(5, p))
        np.testing.assert_array_equal(a.weights, TASK.weights)
        assert len(a.losses) == len(a.clients)


def test_drift_is_honoured() -> None:
    engine = Recording()
    list(simulate(engine, Drifting(), Bernoulli(0.7), rounds=6, seed=5))
    for job in engine.jobs:
        wanted = np.repeat(job.clients[:, None] + (job.t - 1), 3, axis=1)
        np.testing.assert_array_equal(job.drift, wanted)


def test_an_empty_round_is_a_round() -> None:
    seen = list(simulate(ENGINE, MIFA(), Bernoulli(0.0), rounds=3))
    assert [s.t for s in seen] == [1, 2, 3]
    for s in seen:
        assert len(s.clients) == len(s.available) == 0
        np.testing.assert_array_equal(s.params, TASK.init(0))


class Careless:
    """A strategy and a participation process whose methods return what they are told to."""

    def __init__(self, step=None, chosen=None, rows=()):
        self.step, self.chosen, self.given = step, chosen, rows

    def init(self, n, d):
        return None

    def aggregate(self, state, r):
        return self.step if self.step is not None else (np.zeros_like(r.params), state)

    def select(self, state, availability):
        return self.chosen if self.chosen is not None else (availability.clients, state)

    def probs(self, n):
        return np.ones(n, np.float32)

    def rows(self, n, rng):
        yield from self.given


ALL = np.ones(3, np.bool_)


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (Careless(rows=[ALL]), "participation must give a row for every round, got 1 of them"),
        (Careless(rows=[ALL / 2]), "participation must give rows of 3 booleans, got array.* in round 1"),
        (Careless(rows=[ALL[:2]]), "participation must give rows of 3 booleans"),
        (Careless(np.zeros(2), rows=[ALL]), r"aggregate of Careless must return \(step, state\), got array"),
        (Careless((np.zeros(3), None), rows=[ALL]), r"the step of Careless must be \(2,\), .* got \(3,\)"),
        (Careless((np.full(2, np.nan), None), rows=[~ALL]), "not finite; without updates a strategy returns zeros"),
        (Careless(chosen=np.arange(3), rows=[ALL]), r"select of Careless must return \(clients, state\)"),
        (Careless(chosen=([0], None), rows=[ALL]), r"an ascending array of available clients, got \[0\]"),
        (Careless(chosen=(np.array([2, 1]), None), rows=[ALL]), "an ascending array of available clients"),
        (Careless(chosen=(np.array([9]), None), rows=[ALL]), "an ascending array of available clients"),
    ],
)
def test_what_a_part_of_ones_own_returns_is_checked(part, sentence):
    engine = Serial(Quadratic.random(n=3, d=2), Local(lr=0.1))
    with pytest.raises((ValueError, ArithmeticError), match=sentence):
        list(simulate(engine, part, part, rounds=2))


class Lists(Careless):
    """One that lists who is there."""

    def present_clients(self, n, rng):
        yield from self.given


@pytest.mark.parametrize(
    ("listed", "sentence"),
    [
        ([np.array([0, 2])], "participation must give a row for every round, got 1 of them"),
        ([np.array([2, 0])], r"must list clients below 3 in ascending order, got array\(\[2, 0\]\) in round 1"),
        ([np.array([1, 3])], "must list clients below 3"),
        ([np.array([-1, 2])], "must list clients below 3"),
        ([ALL], "must list clients below 3"),
        ([[0, 1]], "must list clients below 3"),
    ],
)
def test_clients_that_a_participation_lists_are_checked(listed, sentence):
    engine, who = Serial(Quadratic.random(n=3, d=2), Local(lr=0.1)), Lists(rows=listed)
    with pytest.raises(ValueError, match=sentence):
        list(simulate(engine, FedAvg(), who, rounds=2))


def test_a_run_starts_from_a_checkpoint_only():
    engine = Serial(Quadratic.random(n=3, d=2), Local(lr=0.1))
    with pytest.raises(ValueError, match=r"start must be like s\.checkpoint, got 3"):
        simulate(engine, FedAvg(), Bernoulli(0.5), rounds=2, start=3)


@pytest.mark.parametrize("rule", [FedStale(0.5), CAFed()])  # the second selects
def test_rounds_that_go_well_print_no_array(monkeypatch, rule):
    def unwanted(value: object) -> str:
        raise AssertionError("a sentence was made that nobody reads")

    rounds = simulate(Serial(Quadratic.random(n=3, d=2), Local(lr=0.1)), rule, Bernoulli(0.9), rounds=3)
    next(rounds)
    monkeypatch.setattr("fedstale.core.parts._QUOTE.repr", unwanted)
    assert [s.t for s in rounds] == [2, 3]


def test_a_step_of_float64_leaves_the_parameters_float32():
    class Twice(FedAvg):
        def aggregate(self, state, r):
            step, state = super().aggregate(state, r)
            return step.astype(np.float64), state

    engine = Serial(Quadratic.random(n=3, d=2), Local(lr=0.1))
    runs = [list(simulate(engine, rule, Bernoulli(0.5), rounds=5, seed=1))[-1] for rule in (FedAvg(), Twice())]
    assert all(s.params.dtype == s.step.dtype == np.float32 for s in runs)
    np.testing.assert_array_equal(runs[0].params, runs[1].params)


def test_a_change_of_float64_leaves_the_parameters_float32():
    class Half(Sgd):
        def apply(self, state, params, step):
            return 0.5 * step.astype(np.float64), state

    engine = Serial(Quadratic.random(n=3, d=2), Local(lr=0.1))
    *_, last = simulate(engine, FedAvg(), Bernoulli(0.5), rounds=5, seed=1, server=Half())
    assert last.params.dtype == np.float32


@pytest.mark.parametrize("swapped", [False, True])
def test_what_is_no_snapshot_is_not_evaluated(swapped):
    task = Quadratic.random(n=3, d=2)
    s = next(simulate(Serial(task, Local(lr=0.1)), FedAvg(), Bernoulli(0.5), rounds=1))
    given = (s, task) if swapped else (task, s.params)
    with pytest.raises(ValueError, match=r"takes a task and then a snapshot of fs.simulate or its checkpoint, got"):
        evaluate(*given)
