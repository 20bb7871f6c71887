"""A run: its parts and settings, what is checked before round 1, its first checkpoint, and how it may end early."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from fedstale.channels import Lossless
from fedstale.core import CountsSamples, EstimatesMixing, Mixes, WarmsUp, WithTruth, require_last_gradient
from fedstale.core.abilities import GivesRoot, buffered, keeps_own, names_of, place_of, runs_loops
from fedstale.core.device_array import DeviceArray
from fedstale.core.hooks import Hooks, bound, check_hooks, hooks_of, layers, rebuilt
from fedstale.core.local import Local
from fedstale.core.parts import BadInput, require
from fedstale.core.protocols import Channel, Engine, Estimator, Participation, Server, Strategy, Task
from fedstale.core.records import NEW, Array, Belief, Checkpoint, Clients, Mask
from fedstale.core.rng import stream
from fedstale.core.split import Observes, Splits
from fedstale.defence import Defence, Liars
from fedstale.memory import Float32, KeepsMemory, OnDevice
from fedstale.memory.memory import at_clients
from fedstale.participation.clock import Clock, Load, Pace, Row
from fedstale.participation.estimators import Known
from fedstale.participation.trace import matched
from fedstale.privacy.ledger import Privacy, bounded, costs
from fedstale.privacy.noise import Noised
from fedstale.privacy.ring import Ring
from fedstale.privacy.sums import placed
from fedstale.simulate.servers import Sgd

NUMBER = 4  # bytes of a number that is sent


class Interrupted(Exception):
    """The runs were asked to stop; `--resume` continues them."""


class Diverged(ArithmeticError):
    """The step, the parameters or all updates of a round, or of the last ones, are not finite: it cannot go on."""


class Run(NamedTuple):
    """The parts and settings of one simulation. `simulate` plays one run, `together` plays several in step."""

    engine: Engine
    strategy: Strategy
    participation: Participation
    rounds: int
    seed: int = 0
    server: Server = Sgd(1.0)
    estimator: Estimator = Known()
    channel: Channel = Lossless()
    local: Local | None = None  # instead of the engine's
    defence: Defence | None = None
    liars: Liars | None = None
    privacy: Privacy | None = None
    clock: Clock | None = None  # rounds have no time without one


class Fixed(NamedTuple):
    """What stays the same in all rounds of a run, asked for once."""

    n: int
    d: int
    weights: Array  # (n,) a_i
    share: Array | None  # (n,) chance that a coordinate is there, given that anything is; None if it always is
    local: Local
    hooks: Hooks
    load: Load  # what a client does and sends for an update
    mixing: Callable[[Belief], Array]  # (n,) belief about λ_i

    @classmethod
    def of(cls, run: Run) -> "Fixed":
        """That of a run which was checked."""
        task, none = run.engine.task, np.zeros(run.engine.task.n, np.float32)
        mixing = run.estimator.mixing if isinstance(run.estimator, EstimatesMixing) else lambda _: none
        n, d, local = task.n, task.d, run.local or run.engine.local
        share = run.channel.share(n, d)
        whole = None if (share == 1).all() else share  # to multiply by ones costs more than a round of few clients
        hooks = hooks_of(run.strategy)
        return cls(n, d, task.weights, whole, local, hooks, _load(run, hooks), mixing)


def first(run: Run) -> Checkpoint:
    """The checkpoint of round 0, where the run begins."""
    task, keeper = run.engine.task, buffered(run.engine.task)
    return Checkpoint(
        t=0,
        params=task.init(run.seed),
        state=run.strategy.init(task.n, task.d),
        belief=run.estimator.init(task.n),
        server=run.server.init(task.d),
        channel=run.channel.init(task.n, partial(stream, run.seed, "channel", 0)),
        buffers=keeper.initial_buffers if keeper else None,
        clients=_clients(run),
        defence=run.defence.init(task.n, task.d) if run.defence else None,
    )


def _clients(run: Run) -> Clients | None:
    """What clients have before round 1; None if they keep nothing."""
    if own := keeps_own(run.engine.task):
        return Clients({NEW: own.initial_state(run.seed)})
    return None if (run.local or run.engine.local).train is None else Clients()


def _load(run: Run, hooks: Hooks) -> Load:
    """What a client does for an update: its steps, and the bytes of the vectors that it is sent and sends."""
    task, local = run.engine.task, run.local or run.engine.local
    numbers, keeper = task.d, buffered(task)
    more = len(keeper.initial_buffers) if keeper else 0
    down = NUMBER * (numbers * (1 + (hooks.drift is not None)) + more)  # SCAFFOLD sends its c as well
    up = NUMBER * (numbers * (1 + hooks.needs_last_gradient) + more)
    sizes = task.samples if isinstance(task, CountsSamples) else np.full(task.n, local.batch)
    steps = np.full(task.n, local.steps or 0) if local.epochs is None else local.epochs * local.per_epoch(sizes)
    return Load(steps, down, up)


def timeline_of(run: Run) -> Iterator[Row]:
    """The timeline of a run with a clock: the same for all algorithms that send as much."""
    assert run.clock is not None
    return run.clock.rows(run.participation, run.engine.task.n, _load(run, hooks_of(run.strategy)), run.seed)


def checked(run: Run) -> Run:
    """The run, if it can be played, with its strategy bound to the task and its estimator ready for round 1."""
    _check_kinds(run)
    if names := names_of(run.engine.task):
        run = run._replace(participation=matched(run.participation, names))
    n, d, estimator, process = run.engine.task.n, run.engine.task.d, run.estimator, run.participation
    arrival, rule = run.channel.probs(n, d), bound(run.strategy, run.engine.task)
    if (run.local or run.engine.local).train is not None:
        runs_loops(run.engine.task)
        own = "the gradients of a training loop of your own (local.train) cannot be changed"
        require(hooks_of(rule).drift is None, f"{rule} adds a vector to every local gradient; {own}")
    if hooks_of(rule).needs_last_gradient:
        require_last_gradient(run.local or run.engine.local)
    require(
        not (isinstance(estimator, WarmsUp) and estimator.warmup_rounds > 0 and (arrival < 1).any()),
        f"warm-up rounds do not pass through the channel: warmup_rounds must be 0 with {run.channel}",
    )
    run = run._replace(strategy=rule, defence=_rooted(run))
    if run.clock is not None:
        _check_clock(run, run.clock)
        run = _limited(run, run.clock)
    if (place := place_of(run.engine.task)) is not None:
        rule = _on_device(run, place)
        run = run._replace(strategy=rule)
    explicit = isinstance(estimator, WithTruth) and not estimator.needs_truth
    timed = isinstance(estimator, WithTruth) and run.clock is not None and not explicit  # p_i are its shares
    marginals = (_arrival_shares(run) if timed else process.probs(n)) * arrival
    if isinstance(estimator, WithTruth):
        mixing = process.mixing(n) if isinstance(process, Mixes) else np.zeros(n, np.float32)
        estimator = estimator.with_truth(marginals, mixing)
    _check_attack(run)
    if hooks_of(rule).inverse_weighting and run.clock is None and isinstance(estimator, WithTruth):
        zero = (estimator.probs(estimator.init(n)) <= 0) & (marginals > 0) if explicit else ~(marginals > 0)
        _refuse_zero(rule, zero, names)  # who never comes needs no p_i if all are given
    run = run._replace(estimator=warmed_up(estimator, process, n, run.seed))
    if run.privacy is not None:
        require_kind("privacy", run.privacy)
    secure = run.privacy is not None and run.privacy.secure
    if not secure and not at_clients(rule):
        return run if run.privacy is None else _private(run)
    _check_sums(run)
    ring = Ring(run.privacy.range) if secure and run.privacy else None
    return run._replace(strategy=placed(rule, ring), privacy=None if secure else run.privacy)


def _on_device(run: Run, place: DeviceArray) -> Strategy:
    """The strategy with its memory where updates stay, if nothing needs them elsewhere."""
    task, local, rule, clock = run.engine.task, run.local or run.engine.local, run.strategy, run.clock
    codings = [layer.memory for layer in layers(rule) if isinstance(layer, KeepsMemory)]
    refused = {
        str(rule): not all(isinstance(layer, Splits | Observes) for layer in layers(rule)),
        f"memory {codings}": not all(type(c) in (Float32, OnDevice) and c.folder is None for c in codings),
        f"parts of updates ({run.channel})": (run.channel.share(task.n, task.d) < 1).any(),
        "a defence": run.defence, "liars": run.liars, "privacy": run.privacy, "local.train": local.train,
        "a clock that does not wait": clock and not clock.waits(task.n), "personal parts": keeps_own(task),
    }  # fmt: skip
    asked = " and ".join(what for what, wanted in refused.items() if wanted)
    rules = "fedavg, unbiased, fedstale, fedvarp, mifa and auto sum whole updates where they were trained"
    require(not asked, f'aggregate = "device": {rules}, with float32 rows in memory, got {asked}')

    def moved(x: Any) -> Any:
        keeps = isinstance(x, KeepsMemory)
        return dataclasses.replace(x, memory=OnDevice(place=place)) if keeps else x

    return rebuilt(rule, moved)


def _check_sums(run: Run) -> None:
    """Refuse what needs single updates where the server has sums only."""
    task, hidden = run.engine.task, "where the server sees sums of updates only"
    require(run.defence is None, f"a defence judges single updates: it cannot be had {hidden}")
    whole = bool((run.channel.share(task.n, task.d) >= 1).all())
    require(whole, f"whole updates are needed {hidden}, got a channel that delivers parts of them: {run.channel}")
    ok = run.privacy is None or run.privacy.secure
    require(ok, 'noise and epsilon need the memory at the server, got memory = "clients"')
    plain = buffered(task) is None
    require(plain, f'averaged buffers are not summed {hidden}: use buffers = "frozen" or "local"')


def _private(run: Run) -> Run:
    """The run with noise on its steps, if nothing else of it tells about clients what no noise covers."""
    task, privacy, rule = run.engine.task, run.privacy, run.strategy
    assert privacy is not None
    bounded(rule)
    require(run.defence is None, "privacy and a defence do not go together: what is refused tells about a client")
    whole = bool((run.channel.share(task.n, task.d) >= 1).all())
    require(whole, f"privacy needs whole updates, got a channel that delivers parts of them: {run.channel}")
    require(buffered(task) is None, 'privacy does not cover averaged buffers: use buffers = "frozen" or "local"')
    ok = privacy.noise is not None or run.clock is None
    require(ok, "with a clock privacy needs noise, got epsilon alone: who arrives when is not known before the run")
    rows = islice(run.participation.rows(task.n, stream(run.seed, "participation")), run.rounds)
    probs = run.participation.probs(task.n) * run.channel.probs(task.n, task.d)
    spent = costs(rule, rows, task.weights, probs) if privacy.noise is None else np.zeros(task.n)
    return run._replace(strategy=Noised(rule, privacy.calibrated(spent), run.seed), privacy=None)


def _refuse_zero(rule: Strategy, zero: Mask, names: Sequence[str]) -> None:
    never = np.flatnonzero(zero)
    require(
        len(never) == 0,
        f"{rule} divides by the participation probability, which must be above 0 and is 0 for {len(never)} of "
        f"{len(zero)} clients (first: {[names[i] if names else i for i in never[:5].tolist()]}); leave them out, "
        'use FedAvg or MIFA, or let the probabilities be learnt (estimator = "intervals")',
    )


def _check_attack(run: Run) -> None:
    """Refuse liars that are no clients, and a defence that cannot judge the updates of the strategy."""
    for name in ("defence", "liars"):
        if getattr(run, name) is not None:
            require_kind(name, getattr(run, name))
    if run.liars:
        most, n = max(run.liars.clients), run.engine.task.n
        require(most < n, f"liars.clients must be below {n}, the number of clients, got {most}")
    hooks = hooks_of(run.strategy)
    ok = run.defence is None or not (hooks.starts or hooks.needs_last_gradient)
    require(
        ok, f"a defence compares updates from the same parameters; clients of {run.strategy} send something else"
    )


def _rooted(run: Run) -> Defence | None:
    """The defence with copies of the task's samples in the place of their number."""
    defence, task = run.defence, run.engine.task
    if not isinstance(defence, Defence) or not isinstance(defence.root, int):
        return defence
    if not isinstance(task, GivesRoot):
        raise BadInput(f"defence.root = {defence.root} needs a task with samples, such as Supervised, got {task}")
    return dataclasses.replace(defence, root=task.root(defence.root))


KINDS: Mapping[str, tuple[Any, str]] = {  # what an argument must be, and an example
    "engine": (Engine, "Serial(task, Local(lr=0.05))"),
    "strategy": (Strategy, "FedAvg()"),
    "participation": (Participation, "Bernoulli(0.5)"),
    "server": (Server, "Sgd(1.0)"),
    "estimator": (Estimator, "Known()"),
    "channel": (Channel, "Lossless()"),
    "task": (Task, "Quadratic([[1.0]])"),
    "local": (Local, "Local(lr=0.05)"),
    "defence": (Defence, "Defence()"),
    "liars": (Liars, "Liars((0, 1))"),
    "privacy": (Privacy, "Privacy(epsilon=4.0)"),
    "clock": (Clock, "Clock(Buffer(10, 40), round_seconds=600.0)"),
    "pace": (Pace, "Buffer(10, 40)"),
}


def require_kind(name: str, value: object) -> None:
    """Refuse a class in the place of an instance, a number in the place of a server, a task as the engine, …"""
    kind, example = KINDS[name]
    ok = isinstance(value, kind) and not isinstance(value, type)
    require(ok, f"{name} must be an object such as {example}, got {_named(value)}")
    if isinstance(value, Strategy):
        check_hooks(value)


def _check_kinds(run: Run) -> None:
    """Refuse parts that are of another kind, and numbers that are none."""
    for name in ("engine", "strategy", "participation", "server", "estimator", "channel"):
        require_kind(name, getattr(run, name))
    if run.clock is not None:
        require_kind("clock", run.clock)
    task = run.engine.task
    require(
        isinstance(task, Task), f"the engine's task must be a task such as Quadratic([[1.0]]), got {_named(task)}"
    )
    for name, number, least in (("rounds", run.rounds, 1), ("seed", run.seed, 0)):
        ok = isinstance(number, int | np.integer) and not isinstance(number, bool) and number >= least
        require(ok, f"{name} must be a whole number of at least {least}, got {number!r}")


def _named(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return repr(value) if isinstance(value, int | float | str | None) else f"a {type(value).__name__}"


def warmed_up(estimator: Estimator, participation: Participation, n: int, seed: int) -> Estimator:
    """The estimator after its warm-up rounds, if it asks for any; they are other draws than those of the run."""
    if not isinstance(estimator, WarmsUp) or estimator.warmup_rounds == 0:
        return estimator
    return estimator.warmed_up(participation.rows(n, stream(seed, "watched")))


def _limited(run: Run, clock: Clock) -> Run:
    """The run with as many rounds as its clock's hours have steps, if those are fewer."""
    if clock.hours is None:
        return run
    rows = clock.within(timeline_of(run), run.rounds)
    require(len(rows) > 0, f"clock.hours: no step is made within {clock.hours:g} hours")
    return run._replace(rounds=len(rows))


def _arrival_shares(run: Run) -> Array:
    """(n,) the share of the steps of this run in which an update of the client arrives; its p_i.

    A client that never arrives has that of one that comes in the step after the last: it is never divided by.
    """
    counts = np.zeros(run.engine.task.n)
    for row in islice(timeline_of(run), run.rounds):
        counts[row.clients] += 1
    return np.asarray(np.where(counts > 0, counts / run.rounds, 1 / (run.rounds + 1)), np.float32)


def _check_clock(run: Run, clock: Clock) -> None:
    """Refuse what cannot be with a clock, or without waiting for clients."""
    hooks, local = hooks_of(run.strategy), run.local or run.engine.local
    name = type([*layers(run.strategy)][-1]).__name__  # of the rule itself, not of what records it
    require(hooks.unheard is None, f"clients of {name} train unheard in every round; a clock cannot time them")
    warm = isinstance(run.estimator, WarmsUp) and run.estimator.warmup_rounds > 0
    require(not warm, "warm-up rounds have no clock: warmup_rounds must be 0 with one")
    require(
        local.work is None, "a clock needs a known number of steps: local.steps or local.epochs, got local.work"
    )
    counted = local.epochs is None or isinstance(run.engine.task, CountsSamples)
    require(counted, "a clock needs local.steps with a task that does not count its samples, got local.epochs")
    if clock.waits(run.engine.task.n):
        return
    wait = "without rounds; use pace 'rounds'"
    require(hooks.select is None, f"{name} selects clients by their losses, which would change the timeline {wait}")
    require(hooks.drift is None, f"{name} changes local gradients by what the server knows now, not {wait}")
    require(
        hooks.starts is None, f"clients of {name} begin at points of their own, which a server cannot age {wait}"
    )
    require(run.defence is None, f"a defence compares updates from the same parameters, which differ {wait}")
