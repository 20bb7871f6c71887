"""Hooks: everything that a strategy may do besides `init` and `aggregate`, read from it once for a run.

A strategy has a hook if it has a method or a class variable of that name. A strategy around another one, a wrapper,
passes all hooks on with one method, and a method of its own overrides one of them:

    def hooks(self):
        return hooks_of(self.strategy)           # if the state is that of the strategy inside
        return hooks_of(self.strategy).lifted()  # if the state is Wrapped(inner, own)

`sensitivity` alone is not passed on in this way: it bounds the steps of the strategy inside, which a wrapper may
change. A wrapper that changes none, or only makes updates shorter, has it as a property of its own (Clipped).

`starts` and `needs_last_gradient` change what clients do, and no engine has to know them: `train` makes plain jobs.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from fedstale.core.local import Floats, Ids, Local, Work
from fedstale.core.parts import BadInput, able, keep, require
from fedstale.core.protocols import Engine, Strategy, Task
from fedstale.core.records import Array, Availability, Job, Reply, State

__all__ = [
    "Hooks", "Wrapped", "bound", "check_hooks", "forgotten", "hooks_of", "layers", "rebuilt",
    "require_last_gradient", "train",
]  # fmt: skip

Sensitivity = Callable[[State, Ids, Array, Array], Floats]  # (n,) of a round with these clients, weights, probs


class Wrapped(NamedTuple):
    """The state of a wrapper that has something of its own to remember."""

    inner: State  # of the strategy inside
    own: State = None


class Hooks(NamedTuple):
    """What a strategy does besides `init` and `aggregate`; None, False or () where it does not."""

    admit: Callable[[State, Ids, Array, Array], tuple[Ids, State]] | None = None  # who may be asked; weights, probs
    select: Callable[[State, Availability], tuple[Ids, State]] | None = None  # which of the available clients train
    drift: Callable[[State, Ids], Array] | None = None  # (m, d) is added to every local gradient of these clients
    starts: Callable[[State, Ids, Array], Array] | None = None  # (m, d) where they begin, in place of the params
    unheard: Callable[[State, Ids, Array, Array], State] | None = None  # all train; after (m, d) unheard updates
    forget: Callable[[State, Ids], State] | None = None  # the state without what these clients, who lied, have left
    point: Callable[[State, Array], Array] | None = None  # (d,) where the model is evaluated too, as `own_` metrics
    sensitivity: Sensitivity | None = None  # (n,) how far each can move a step
    inverse_weighting: bool = False  # divides by p_i: clients with p_i = 0 are refused before any work
    needs_last_gradient: bool = False  # of each client's last local step, in Round.gradients
    least: int = 0  # a round with fewer clients than this closes as one without any
    at_clients: tuple[str, ...] = ()  # fields of the state, a row for each client, that a deployment keeps there

    def lifted(self, *fields: str) -> "Hooks":
        """The same hooks for a state that has the one they know in a field: in `inner`, as Wrapped, or in these.

        With several fields, what is done to the first is also done to the others.
        """
        return Hooks(*(LIFTS[name](hook, fields or ("inner",)) for name, hook in self._asdict().items()))

    def used(self) -> set[str]:
        """The names of the hooks that do something."""
        return {name for name, hook in self._asdict().items() if hook}


def _reads(hook: Any, fields: tuple[str, ...]) -> Any:
    return hook and (lambda state, *given: hook(getattr(state, fields[0]), *given))


def _changes(hook: Any, fields: tuple[str, ...]) -> Any:
    return hook and (lambda state, *given: state._replace(**{f: hook(getattr(state, f), *given) for f in fields}))


def _returns_too(hook: Any, fields: tuple[str, ...]) -> Any:
    """Of a hook that returns something and the next state."""

    def lifted(state: Any, *given: Any) -> tuple[Any, State]:
        both = {field: hook(getattr(state, field), *given) for field in fields}
        return both[fields[0]][0], state._replace(**{field: after for field, (_, after) in both.items()})

    return hook and lifted


LIFTS: dict[str, Callable[[Any, tuple[str, ...]], Any]] = {  # how each hook becomes one of a larger state
    "admit": _returns_too,
    "select": _returns_too,
    "drift": _reads,
    "starts": _reads,
    "unheard": _changes,
    "forget": _changes,
    "point": _reads,
    "sensitivity": _reads,
    "inverse_weighting": lambda yes, fields: yes,
    "needs_last_gradient": lambda yes, fields: yes,
    "least": lambda fewest, fields: fewest,
    "at_clients": lambda names, fields: tuple(f"{fields[0]}.{name}" for name in names),
}


@runtime_checkable
class PassesOn(Protocol):
    """A strategy that passes on the hooks of another one."""

    def hooks(self) -> Hooks: ...


@runtime_checkable
class BindsTask(Protocol):
    """A strategy that takes settings from the task of a simulation, such as each client's least loss."""

    def bind(self, task: Task) -> Strategy: ...


def hooks_of(strategy: Strategy) -> Hooks:
    """Everything that a strategy does besides `init` and `aggregate`: what it passes on, and its own methods."""
    passed = strategy.hooks()._replace(sensitivity=None) if able(strategy, PassesOn) else Hooks()
    own: dict[str, Any] = {name: getattr(strategy, name, hook) for name, hook in passed._asdict().items()}
    return Hooks(**own)


def inside(strategy: Strategy) -> dict[str, Strategy]:
    """The strategies that are settings of this one, by field."""
    found: dict[str, Any] = {}
    if dataclasses.is_dataclass(strategy):
        found = {f.name: getattr(strategy, f.name) for f in dataclasses.fields(strategy)}
    else:
        with suppress(TypeError):  # of an object with slots
            found = vars(strategy)
    return {k: value for k, value in found.items() if isinstance(value, Strategy) and not isinstance(value, type)}


def layers(strategy: Strategy) -> Iterator[Strategy]:
    """The strategy, and all that are inside it."""
    yield strategy
    for inner in inside(strategy).values():
        yield from layers(inner)


def rebuilt(strategy: Strategy, change: Callable[[Strategy], Strategy]) -> Strategy:
    """The strategy with all that are inside it changed, and then itself."""
    for name, inner in inside(strategy).items():
        if (new := rebuilt(inner, change)) is not inner:
            strategy = copy.copy(strategy)
            keep(strategy, name, new)
    return change(strategy)


def bound(strategy: Strategy, task: Task) -> Strategy:
    """The strategy with the settings that it, or one inside it, takes from the task, if any."""
    return rebuilt(strategy, lambda rule: rule.bind(task) if isinstance(rule, BindsTask) else rule)


def forgotten(strategy: Strategy) -> str:
    """What a wrapper does not pass on of a strategy inside it, in a sentence; "" if nothing is lost."""
    for outer in layers(strategy):
        for inner in inside(outer).values():
            if lost := sorted(hooks_of(inner).used() - hooks_of(outer).used() - {"sensitivity"}):
                who, what = type(outer).__name__, type(inner).__name__
                way = "return fs.core.hooks_of(self.strategy)"
                every = f"{who} must pass on every hook of {what} inside it, as `def hooks(self): {way}` does"
                return f"{every}, got none for {', '.join(lost)}"
    return ""


def check_hooks(strategy: Strategy) -> None:
    """Refuse a wrapper that forgets a hook of the strategy inside it: it would train something else."""
    if sentence := forgotten(strategy):
        raise BadInput(sentence)


def train(engine: Engine, jobs: Sequence[Job]) -> list[Reply]:
    """The replies of an engine to all jobs.

    A job with `starts` is one job per client. A job that asks for the last gradient is also trained one step less:
    the difference is the last step. Jobs with neither are given to the engine as they are.
    """
    if all(job.starts is None and not job.last_gradient for job in jobs):
        return engine.train(jobs)
    replies = iter(engine.train([part for job in jobs for part in _parts(job)]))
    return [_joined(job, replies) for job in jobs]


def _parts(job: Job) -> list[Job]:
    """The jobs of which an engine's replies make the reply to this one."""
    plain = job._replace(starts=None, last_gradient=False)
    parts = [plain]
    if job.starts is not None and len(job.clients):
        parts = [plain.of(slice(k, k + 1))._replace(params=start) for k, start in enumerate(job.starts)]
    if not job.last_gradient:
        return parts
    require_last_gradient(job.local, job.t)
    shorter = dataclasses.replace(job.local, steps=(job.local.steps or 0) - 1) if job.local.steps != 1 else None
    return parts + [part._replace(local=shorter) for part in parts if shorter]


def require_last_gradient(local: Local, t: int = 0) -> None:
    """Refuse local work whose last step is no gradient times the rate."""
    ok = local.plain and local.steps is not None and local.rate(t) > 0 and not local.prox
    require(ok, f"the last gradient needs plain SGD at a fixed number of steps and a rate above 0, got {local}")


def _joined(job: Job, replies: Iterator[Reply]) -> Reply:
    """The reply to a job, from those to its parts."""
    count = 1 if job.starts is None else max(1, len(job.clients))
    reply = _merged(list(islice(replies, count)))
    if not job.last_gradient:
        return reply
    before = _merged(list(islice(replies, count))).updates if job.local.steps != 1 else np.float32(0)
    gradients: Array = (before - reply.updates) / np.float32(job.local.rate(job.t))
    return reply._replace(gradients=gradients if job.drift is None else gradients - job.drift)


def _merged(replies: Sequence[Reply]) -> Reply:
    """One reply with the rows of all."""
    if len(replies) == 1:
        return replies[0]
    first = replies[0]
    works = [reply.work for reply in replies if reply.work]
    buffers = [reply.buffers for reply in replies if reply.buffers is not None]
    states = {client: state for reply in replies for client, state in (reply.states or {}).items()}
    return first._replace(
        updates=np.concatenate([reply.updates for reply in replies]),
        losses=np.concatenate([reply.losses for reply in replies]),
        work=Work(*map(np.concatenate, zip(*works, strict=True))) if works else None,
        buffers=np.concatenate(buffers) if buffers else None,
        states=states or None,
    )
