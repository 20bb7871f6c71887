"""Hooks: everything that a strategy may do besides `init` and `aggregate`, read from it once for a run.

A strategy has a hook if it has a method or a class variable of that name. A strategy around another one, a wrapper,
passes all hooks on with one method, and a method of its own overrides one of them:

    def hooks(self):
        return hooks_of(self.strategy)           # if the state is that of the strategy inside
        return hooks_of(self.strategy).lifted()  # if the state is Wrapped(inner, own)
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, runtime_checkable

from fedstale.core.local import Floats, Ids
from fedstale.core.parts import BadInput, keep
from fedstale.core.protocols import Strategy, Task, able
from fedstale.core.records import Array, Availability, State

__all__ = ["Hooks", "Wrapped", "bound", "check_hooks", "forgotten", "hooks_of", "layers", "rebuilt"]


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
    sensitivity: Callable[[State, Ids, Array, Array], Floats] | None = None  # (n,) how far each can move a step
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
    passed = strategy.hooks() if able(strategy, PassesOn) else Hooks()
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
            if lost := sorted(hooks_of(inner).used() - hooks_of(outer).used()):
                who, what = type(outer).__name__, type(inner).__name__
                way = "return fs.core.hooks_of(self.strategy)"
                every = f"{who} must pass on every hook of {what} inside it, as `def hooks(self): {way}` does"
                return f"{every}, got none for {', '.join(lost)}"
    return ""


def check_hooks(strategy: Strategy) -> None:
    """Refuse a wrapper that forgets a hook of the strategy inside it: it would train something else."""
    if sentence := forgotten(strategy):
        raise BadInput(sentence)
