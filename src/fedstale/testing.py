"""Contract tests for parts, ours and your own: `check_strategy(MyStrategy())`.

Plain functions for any test runner. They raise AssertionError with one sentence: which promise is
broken, and by what.
"""

import copy
import dataclasses
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from fedstale import core
from fedstale.core.abilities import evaluate, scores_of_clients
from fedstale.core.protocols import Channel, Engine, Estimator, Participation, Strategy
from fedstale.core.records import Array, Ids, Job, Mask, Reply, Round, State
from fedstale.core.rng import stream
from fedstale.privacy.sums import Summed

Copy = Callable[[Any], Any]
FLOATS = (np.float32, np.float64)  # of steps, changes and probabilities: a round makes float32 of them


def check_strategy(strategy: Strategy, *, n: int = 5, d: int = 6, rounds: int = 8, tolerance: float = 1e-5) -> None:
    """Check a strategy: finite steps that depend only on what arrived, with the same bits in every run.

    `tolerance` is how much the order of the coordinates may matter, relative to the largest of the step:
    by rounding only, unless the rule draws numbers for them.
    """
    with _judged(strategy) as who:
        if lost := core.forgotten(strategy):
            raise AssertionError(lost)
        script = partial(_script, n, d, rounds=rounds)
        steps = _repeatable(who, lambda again: _steps(strategy, script(), again))
        crowded = _steps(strategy, script(), _itself, beside=script(seed=1))
        _same(who, steps, crowded, "another run must not change this one")
        filled = _steps(strategy, script(hole=1e9), _itself)
        _same(who, steps, filled, "a coordinate that did not arrive must not be read")
        order = stream(0, "order").permutation(d)
        for step, turned in zip(steps, _steps(strategy, script(order=order), _itself), strict=True):
            apart = np.abs(step[order] - turned).max()
            ok = bool(apart <= tolerance * np.abs(step).max())
            _hold(ok, who, "the order of the coordinates must not matter", f"{step[order]} and {turned}")
        if isinstance(strategy, core.Splits):
            _check_split(strategy, n, d, rounds)
        if core.hooks_of(strategy).sensitivity:
            _check_sensitivity(strategy, n, d, rounds)


def _check_split(strategy: Strategy, n: int, d: int, rounds: int) -> None:
    """Hold `close` of the sum of the clients' messages against `aggregate`, in rounds of whole updates."""
    who, script = type(strategy).__name__, _whole(n, d, rounds)
    with _works(who, "opened, orders, message and close"):
        split = _steps(Summed(strategy), script, _itself)
    for t, (step, summed) in enumerate(zip(_steps(strategy, script, _itself), split, strict=True), 1):
        ok = bool(np.abs(step - summed).max() <= 1e-4 * max(1.0, float(np.abs(step).max())))
        promise = f"close of the sum of the messages must be aggregate (round {t})"
        _hold(ok, who, promise, f"{summed} and {step}")


def _check_sensitivity(strategy: Strategy, n: int, d: int, rounds: int) -> None:
    """Give one client after the other updates of another length and sign, and hold the steps against the bound."""
    who, stated = type(strategy).__name__, core.hooks_of(strategy).sensitivity
    assert stated is not None
    for i in range(n):
        state, moved = strategy.init(n, d), strategy.init(n, d)
        longer = np.where(np.arange(n) == i, np.float32(-100), np.float32(1))[:, None]
        for r in _whole(n, d, rounds):
            most = 2 * float(stated(state, r.clients, r.weights, r.probs)[i])
            step, state = _turn(strategy, state, r)
            other, moved = _turn(strategy, moved, r._replace(updates=longer * r.updates))
            far = float(np.linalg.norm(step - other))
            promise = f"other updates of a client may move a step by at most twice its sensitivity, {most:g}"
            _hold(far <= 1.0001 * most + 1e-6, who, promise, f"{far:g} for client {i} in round {r.t}")


def check_participation(participation: Participation, *, n: int = 6, rounds: int = 2000) -> None:
    """Check a participation process: endless rows that depend on the generator only and agree with `probs`."""
    with _judged(participation) as who:
        p = participation.probs(n)
        rows = list(islice(participation.rows(n, stream(0, "check")), rounds))
        twins = [participation.rows(n, stream(0, "check")) for _ in range(2)]  # taking turns
        pairs = list(islice(zip(*twins, strict=False), min(50, rounds)))
        _array(who, "probs", p, FLOATS, [(n,)], (p >= 0) & (p <= 1))
        _hold(len(rows) == rounds, who, "rows must never end", f"they did after {len(rows)}")
        for row in rows:
            _array(who, "a row", row, np.bool_, [(n,)])
        for twin in zip(*pairs, strict=True):
            _same(who, rows[: len(pairs)], twin, "the same generator must give the same rows")
        _rates(who, "probs", p, np.array(rows))


def check_estimator(estimator: Estimator, *, n: int = 4, rounds: int = 60) -> None:
    """Check an estimator: probabilities that depend only on the clients heard so far."""
    with _judged(estimator) as who:
        if isinstance(estimator, core.WithTruth):
            estimator = estimator.with_truth(np.full(n, 0.5, np.float32), np.zeros(n, np.float32))
        heard = stream(0, "check").random((rounds, n)) < np.linspace(0, 1, n)  # one client never, one always

        def beliefs(again: Copy) -> Iterator[Array]:
            belief = estimator.init(n)
            for row in heard:
                p = estimator.probs(belief).copy()
                _array(who, "probs", p, FLOATS, [(n,)], (p >= 0) & (p <= 1))
                _same(who, [p], [estimator.probs(belief)], "to ask for probs must not change them")
                given = row.copy()
                belief = again(estimator.observe(belief, given))
                _same(who, [row], [given], "observe must not change what it is given")
                yield p

        _repeatable(who, lambda again: list(beliefs(again)))


def check_channel(channel: Channel, *, n: int = 6, d: int = 40, rounds: int = 600) -> None:
    """Check a channel: losses from its streams only, whatever clients were chosen, that agree with `probs`."""
    with _judged(channel) as who:
        everybody, some, nobody, few = np.arange(n), np.arange(0, n, 2), np.arange(0), min(50, rounds)
        _repeatable(who, lambda again: _through(channel, n, d, few, everybody, again))
        _through(channel, n, d, few, nobody)
        masks = _through(channel, n, d, rounds, everybody)  # per round (n, d)
        others = _through(channel, n, d, few, some)
        _same(who, [m[some] for m in masks[:few]], others, "who was chosen must not change who is lost")
        probs, share = channel.probs(n, d), channel.share(n, d)
        for name, p in {"probs": probs, "share": share}.items():
            _array(who, name, p, np.float32, [(n,)], (p >= 0) & (p <= 1))
        _rates(who, "probs", probs, np.array([m.any(axis=1) for m in masks]))
        _rates(who, "probs × share", probs * share, np.array([m.mean(axis=1) for m in masks]))


def check_server(server: core.Server, *, d: int = 6, rounds: int = 5) -> None:
    """Check a server: finite changes that depend on parameters and steps only."""
    with _judged(server) as who:
        steps = stream(0, "check").standard_normal((rounds, d)).astype(np.float32)
        steps[1] = 0

        def changes(again: Copy) -> Iterator[Array]:
            state, params = server.init(d), np.ones(d, np.float32)
            for step in steps:
                given = params.copy(), step.copy()
                change, state = server.apply(again(state), *given)
                _array(who, "the change", change, FLOATS, [(d,)], np.isfinite(change))
                _same(who, [params, step], given, "apply must not change what it is given")
                params = params + change
                yield change.copy()

        _repeatable(who, lambda again: list(changes(again)))


def check_task(task: core.Task, local: core.Local = core.Local(lr=0.1, steps=3, batch=8)) -> None:
    """Check a task: float32 vectors, losses and gradients that depend on nothing but seed, parameters and batch."""
    who = type(task).__name__
    with _works(who, "every method of its protocol"):
        n, d, a = task.n, task.d, task.weights
        _hold(n >= 1 and d >= 1, who, "n and d must be at least 1", f"{n} and {d}")
        _array(who, "weights", a, np.float32, [(n,)], (a >= 0) & (abs(a.sum() - 1) < 1e-5))
        params = task.init(0).copy()
        _array(who, "init", params, np.float32, [(d,)], np.isfinite(params))
        _same(who, [params], [task.init(0)], "init must give the same for the same seed")
        trained, given = _descents(task, local, params), params.copy()
        keeper = core.buffered(task)
        now = core.Checkpoint(0, given, None, None, None, None, keeper.initial_buffers.copy() if keeper else None)
        scores = dict(evaluate(task, now))
        _same(who, [params], [given], "evaluate must not change its parameters")
        ok = all(isinstance(v, float | np.floating) for v in scores.values())
        _hold(ok, who, "evaluate must give a number for each name", repr(scores))
        for name, values in scores_of_clients(task, now).items():
            shape = np.shape(values)
            _hold(shape == (n,), who, f"per_client must give ({n},) of {name}", str(shape))
        _same(who, trained, _descents(task, local, params), "the same batches must give the same gradients")
        first, second = ([*map(float, found.values())] for found in (scores, evaluate(task, now)))
        _same(who, [np.array(first)], [np.array(second)], "evaluate must give the same again")


def _descents(task: core.Task, local: core.Local, params: Array) -> list[Any]:
    """The losses and gradients of some steps of the first and the last client."""
    who, found = type(task).__name__, list[Any]()
    for client in sorted({0, task.n - 1}):
        batches = list(task.batches(client, local, stream(0, "local", 1, client)))
        count = f"batches must give {local.steps} for as many steps"
        _hold(len(batches) == local.steps, who, count, str(len(batches)))
        for batch in batches:
            given = params.copy()
            loss, gradient = task.gradient(given, client, batch)
            _same(who, [params], [given], "gradient must not change its parameters")
            _array(who, "a gradient", gradient, np.float32, [params.shape], np.isfinite(gradient))
            found += [float(loss), gradient.copy()]
    return found


def check_engine(
    engine: Engine, reference: Engine | None = None, *, rounds: int = 3, tolerance: float = 0.0
) -> None:
    """Check an engine: it trains like the reference (default: Serial), for one job at a time or many.

    `tolerance` is relative to the largest number of the reference's reply; 0 asks for the same bits.
    """
    from fedstale.engines.serial import Serial

    reference = reference or Serial(engine.task, engine.local)
    who = type(engine).__name__
    with _works(who, "train and losses"):
        params, like = engine.task.init(0), f"must train like {type(reference).__name__}"
        states: list[Any] = [None] * len(_jobs(engine, params, 0))
        for t in range(1, rounds + 1):
            jobs = [job._replace(states=s) for job, s in zip(_jobs(engine, params, t), states, strict=True)]
            given, wanted = copy.deepcopy(jobs), reference.train(jobs)
            replies = engine.train(jobs)
            kept = copy.deepcopy(replies)
            _hold(len(replies) == len(jobs), who, "every job needs a reply", f"{len(replies)} for {len(jobs)} jobs")
            for job, before, reply, due in zip(jobs, given, kept, wanted, strict=True):
                _same(who, job, before, "train must not change its jobs")
                _check_reply(engine, job, reply, due, tolerance, like, f"(round {t}, {len(job.clients)} clients)")
            for reply, copied in zip(replies, kept, strict=True):
                _same(who, reply, copied, "a reply must stay as it is when the engine goes on")
            params, states = params + wanted[0].updates.mean(axis=0), [due.states for due in wanted]


def _check_reply(
    engine: Engine, job: Job, reply: Reply, due: Reply, tolerance: float, like: str, where: str
) -> None:
    """Hold a reply against the one that is due, also if the job is alone."""
    who = type(engine).__name__
    _near(who, reply[:2], due[:2], tolerance, f"{like} {where}")
    _same(who, [reply.buffers], [due.buffers], f"the model's buffers {like} {where}")
    _same(who, [reply.states], [due.states], f"what clients keep {like} {where}")
    _same(who, [reply.work], [due.work], f"a reply must count the work of its clients {where}")
    _near(who, engine.train([job])[0][:2], due[:2], tolerance, f"{like} also one job at a time {where}")
    losses = [engine.losses(job)]
    _near(who, losses, [due.losses], tolerance, f"losses() must be those of training {where}")


def _script(n: int, d: int, *, rounds: int, seed: int = 0, hole: float = np.nan, order: Any = ...) -> list[Round]:
    """Random rounds with a row for all n clients, `hole` where nothing arrived, the coordinates in this order.

    Updates are whole and cut in turn; nobody is available in the first and in the fifth round.
    """
    rng, script = stream(seed, "check"), []
    weights = (np.arange(1, n + 1) / (n * (n + 1) / 2)).astype(np.float32)
    for t in range(1, rounds + 1):
        available = np.flatnonzero((rng.random(n) < 0.7) & (t not in (1, 5)))
        arrived, whole = rng.random((n, d)) < 0.7, rng.random((n, 1)) < 0.7
        arrived = whole if t % 2 else arrived[:, order]
        numbers = rng.standard_normal((n + 1, d)).astype(np.float32)[:, order]
        updates = np.where(arrived, numbers[1:], np.float32(hole))
        losses, probs = rng.random(n).astype(np.float32), np.linspace(0.3, 1, n).astype(np.float32)
        work = core.Work(np.full(n, 5), np.full(n, 160), np.full(n, 0.5))
        script.append(Round(t, numbers[0], available, updates, arrived, losses, weights, probs, work, -updates))
    return script


def _whole(n: int, d: int, rounds: int) -> list[Round]:
    """Random rounds in which whole updates arrive."""
    return [r._replace(arrived=np.ones((n, 1), np.bool_)) for r in _script(n, d, rounds=rounds, hole=0.0)]


def _steps(strategy: Strategy, script: list[Round], again: Copy, beside: Sequence[Round] = ()) -> list[Array]:
    """The step of every round; `again` is done to the state after each, `beside` is a run that takes turns."""
    n, d = script[0].updates.shape
    state, other, steps = strategy.init(n, d), strategy.init(n, d), []
    for k, everybody in enumerate(script):
        step, state = _turn(strategy, again(state), everybody)
        steps.append(step)
        if beside:
            _, other = _turn(strategy, other, beside[k])
    return steps


def _turn(strategy: Strategy, state: State, everybody: Round) -> tuple[Array, State]:
    """One round, as the simulation plays it."""
    who, (n, d) = type(strategy).__name__, everybody.updates.shape
    t, _, ids, _, _, losses, weights, probs = everybody[:8]
    available, hooks = ids, core.hooks_of(strategy)
    if hooks.select:
        mixing = np.linspace(0, 0.9, n).astype(np.float32)
        ids, state = hooks.select(state, core.Availability(t, ids, losses[ids], weights, probs, mixing))
        ok = np.array_equal(ids, np.intersect1d(ids, available))
        _hold(ok, who, "select must give an ascending subset of the available", f"{ids} of {available}")
    if hooks.drift:
        pull = hooks.drift(state, ids)
        _array(who, "the drift", pull, np.float32, [(len(ids), d)], np.isfinite(pull))
    if hooks.starts:
        begin = hooks.starts(state, ids, everybody.params)
        _array(who, "the starts", begin, np.float32, [(len(ids), d)], np.isfinite(begin))
    r = everybody._replace(clients=np.arange(n)).of(ids)  # its rows are those of all n clients
    given = copy.deepcopy(r)
    with _works(who, f"aggregate in a round of {len(ids)} clients"):
        step, state = strategy.aggregate(state, r)
    _array(who, f"the step of a round of {len(ids)} clients", step, FLOATS, [(d,)], np.isfinite(step))
    _same(who, r, given, "aggregate must not change the round it is given")
    return step.copy(), state


def _itself(state: Any) -> Any:
    return state


def _through(channel: Channel, n: int, d: int, rounds: int, clients: Ids, again: Copy = _itself) -> list[Mask]:
    """What gets through both ways, (m, d) a round."""
    who, masks = type(channel).__name__, []
    state = channel.init(n, partial(stream, 0, "channel", 0))
    for t in range(1, rounds + 1):
        streams = partial(stream, 0, "channel", t)
        reached, state = channel.downlink(again(state), clients, streams)
        _array(who, "downlink", reached, np.bool_, [(len(clients),)])
        arrived, state = channel.uplink(state, clients[reached], d, streams)
        m = int(reached.sum())
        _array(who, "uplink", arrived, np.bool_, [(m, 1), (m, d)])
        masks.append(np.zeros((len(clients), d), np.bool_))
        masks[-1][reached] = arrived
    return masks


def _jobs(engine: Engine, params: Array, t: int) -> list[Job]:
    """Everybody; some with other settings and a drift; one alone; nobody."""
    n, d, local = engine.task.n, engine.task.d, engine.local
    more: dict[str, Any] = {"steps": local.steps + 1} if local.steps else {}
    more |= {"prox": 0.1} if local.train is None else {}  # a loop of the user's own has no prox and no drift
    other = dataclasses.replace(local, lr=local.lr / 2, decay=0.5, **more)
    drift = 0.1 * stream(0, "drift").standard_normal((n, d)).astype(np.float32)
    pull = drift[::2].copy() if local.train is None else None
    keeper = core.buffered(engine.task)
    buffers = 2 * keeper.initial_buffers + 1 if keeper else None
    return [
        Job(params, np.arange(n), 0, t, local),
        Job(params * np.float32(0.5), np.arange(0, n, 2), 1, t + 7, other, pull, buffers),
        Job(params, np.array([n - 1]), 0, t, local),
        Job(params, np.arange(0), 0, t, local),
    ]


@contextmanager
def _judged(part: Any) -> Iterator[str]:
    """The part's name, for the sentences; one that is a dataclass must also be comparable and picklable."""
    who = type(part).__name__
    with _works(who, "every method of its protocol, repr, == and pickle"):
        _hold(len(repr(part)) > 0, who, "a part must be printable", "its repr is empty")
        if dataclasses.is_dataclass(part):
            again = pickle.loads(pickle.dumps(part))
            _hold(bool(part == again), who, "a part must equal its pickled copy", f"{part} and {again}")
        yield who


@contextmanager
def _works(who: str, what: str) -> Iterator[None]:
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{who}: {what} must work, but raised {type(error).__name__}: {error}") from error


def _hold(ok: bool, who: str, promise: str, got: str) -> None:
    if not ok:  # not an assert: Python leaves those out under -O
        raise AssertionError(f"{who}: {promise}; got {got}")


def _repeatable(who: str, play: Callable[[Copy], list[Any]]) -> list[Any]:
    """What is played, if it comes out the same again, also with a state that was copied after every round."""
    first = play(_itself)
    _same(who, first, play(_itself), "the same inputs must give the same results, whatever ran before")
    for name, again in {"copy.deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}.items():
        _same(who, first, play(again), f"a state that went through {name} must go on with the same bits")
    return first


def _array(who: str, name: str, x: Any, dtype: Any, shapes: list[tuple[Any, ...]], good: Any = np.True_) -> None:
    kinds = dtype if isinstance(dtype, tuple) else (dtype,)
    ok = isinstance(x, np.ndarray) and x.dtype in kinds and x.shape in shapes and bool(np.all(good))
    names, sizes = (" or ".join(words) for words in ([kind.__name__ for kind in kinds], map(str, shapes)))
    wanted = f"{names} of shape {sizes}, in its range and finite"
    _hold(ok, who, f"{name} must be {wanted}", _shown(x))


def _same(who: str, xs: Sequence[Any], ys: Sequence[Any], promise: str) -> None:
    for k, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if isinstance(x, Mapping) and isinstance(y, Mapping):
            x, y = ([*map(list, sorted(z.items(), key=str))] for z in (x, y))
        if isinstance(x, list | tuple) and isinstance(y, list | tuple) and len(x) == len(y):
            _same(who, x, y, promise)
            continue
        arrays = isinstance(x, np.ndarray)
        same = np.array_equal(x, y, equal_nan=x.dtype.kind == "f") if arrays else x == y
        _hold(same, who, promise, f"{_shown(x)} and {_shown(y)} (no. {k})")


def _near(who: str, reply: Sequence[Any], due: Sequence[Array], tolerance: float, promise: str) -> None:
    for x, y in zip(reply, due, strict=True):
        _array(who, "a reply", x, np.float32, [y.shape])
        apart, largest = float(np.abs(x - y).max(initial=0)), float(np.abs(y).max(initial=0))
        _hold(apart <= tolerance * largest, who, promise, f"numbers {apart:g} apart, the largest being {largest:g}")


def _rates(who: str, name: str, p: npt.NDArray[Any], rows: npt.NDArray[Any]) -> None:
    """Shares over the rounds within six standard errors of p, from batch means: rounds may depend on another."""
    T, k = len(rows), min(20, len(rows))
    means = [batch.mean(axis=0) for batch in np.array_split(rows, k)]
    error = np.maximum(np.std(means, axis=0) / np.sqrt(k), np.sqrt(p * (1 - p) / T))
    off = np.flatnonzero(np.abs(rows.mean(axis=0) - p) > 6 * error + 5 / T)
    got = "".join(f"{p[i]:g} for client {i}, whose share of {T} rounds was {rows[:, i].mean():g}" for i in off[:1])
    _hold(len(off) == 0, who, f"{name} must say how often it happens", got)


def _shown(x: Any) -> str:
    return f"{x.dtype} {x.shape} {x}" if isinstance(x, np.ndarray) else repr(x)
