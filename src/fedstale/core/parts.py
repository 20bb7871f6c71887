"""What makes a part: a frozen dataclass that checks the names and the types of its settings.

`part` is the decorator; BadInput is the error of every setting and input that cannot be used.
"""

import dataclasses
import difflib
import functools
import importlib
import inspect
import os
import reprlib
import typing
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, cast, dataclass_transform

import numpy as np
import numpy.typing as npt

from fedstale.core.hints import fits, words

__all__ = [
    "LATER", "BadInput", "arguments_checked", "check_types", "imported", "keep", "known", "normalised", "part",
    "per_client", "require", "shown",
]  # fmt: skip

NO_OWN_PARTS = "FEDSTALE_NO_OWN_PARTS"  # in the environment: import no code that a file names
T = TypeVar("T")
P = ParamSpec("P")
LATER = {"later": True}  # metadata of a field that came later: runs that have its default are known without it


class BadInput(ValueError):
    """A setting or an input that cannot be used; its text is one sentence for the user."""

    def __init__(self, sentence: str) -> None:
        line = " ".join(sentence.splitlines())  # what it quotes may have several
        super().__init__(line if len(line) < 1000 else f"{line[:1000]}…")


def require(ok: bool, sentence: str) -> None:
    """Raise BadInput with this sentence unless `ok`."""
    if not ok:
        raise BadInput(sentence)


def keep(part: object, name: str, value: Any) -> None:
    """Set a field of a frozen part to its checked value, which is read-only if it is an array."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    object.__setattr__(part, name, value)


def per_client(values: npt.ArrayLike, n: int, what: str) -> npt.NDArray[np.float64]:
    """(n,) a setting that is one number for all clients or one for each."""
    x = np.asarray(values, np.float64)
    require(x.ndim == 0 or len(x) == n, f"{n} clients need {n} {what}, got {x.size}")
    return np.broadcast_to(x, n)


def normalised(weights: npt.ArrayLike | None, n: int) -> npt.NDArray[np.float64]:
    """(n,) weights a_i that sum to 1; equal ones if none are given."""
    try:
        a = np.ones(n) if weights is None else np.asarray(weights, np.float64)
    except (TypeError, ValueError):  # words, or rows that differ in length
        a = np.zeros(0)
    ok = a.shape == (n,) and bool((a >= 0).all()) and 0 < float(a.sum()) < np.inf
    require(ok, f"weights must be {n} numbers of at least 0, not all 0, got {shown(weights)}")
    return np.asarray(a / a.sum())


def known(name: object, table: Mapping[str, Any], what: str) -> str:
    """`name` if the table has it, else a sentence with the nearest that it has."""
    if isinstance(name, str) and name in table:
        return name
    near = difflib.get_close_matches(name[:100], table, n=1, cutoff=0.6) if isinstance(name, str) else []
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise BadInput(f"{what} {shown(name)} is unknown; {hint}known: {', '.join(table)}")


def require_own_allowed(own: str, what: str) -> None:
    """Refuse code that a file names as "package.module:Name" if `fedstale --no-own-parts` is to import none."""
    refused = f"{what} {own!r} is code, which --no-own-parts refuses to import"
    require(not os.environ.get(NO_OWN_PARTS), f"{refused}: leave the option out if you trust the file")


def imported(name: str, what: str) -> Any:
    """The object that "package.module:Name" names."""
    require_own_allowed(name, what)
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"{what} {name!r} cannot be imported: {error}") from error


def shown(value: object) -> str:
    """A value as a sentence quotes it: on one line, in the words of TOML, and not too long."""
    return str(value).lower() if isinstance(value, bool) else " ".join(_QUOTE.repr(value).split())


_QUOTE = reprlib.Repr()
_QUOTE.maxstring = _QUOTE.maxother = _QUOTE.maxlong = 60


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def part(cls: type[T]) -> type[T]:
    """A frozen dataclass that checks the names and types of its settings; comparable even where one is an array."""
    made = dataclasses.dataclass(frozen=True, eq=False)(cls)
    init, names = made.__init__, {f.name: f for f in dataclasses.fields(made) if f.init}  # type: ignore[arg-type]

    @functools.wraps(init)
    def __init__(self: Any, *values: Any, **settings: Any) -> None:
        for name in settings:
            known(name, names, f"{cls.__name__} setting")
        failed: Exception | None = None
        try:
            init(self, *values, **settings)
        except BadInput:
            raise  # the part's own sentence
        except Exception as error:
            failed = error
        check_types(made, dict(zip(names, values, strict=False)) | settings)  # in place of the error: one traceback
        if failed is not None:
            raise failed

    made.__init__ = __init__  # type: ignore[method-assign]
    made.__eq__ = _equal  # type: ignore[method-assign]
    made.__hash__ = _hash  # type: ignore[method-assign, assignment]
    return made


def _values(part: Any) -> list[Any]:
    return [getattr(part, f.name) for f in dataclasses.fields(part)]


def _equal(part: Any, other: object) -> Any:
    if type(other) is not type(part):
        return NotImplemented
    return all(_same(x, y) for x, y in zip(_values(part), _values(other), strict=True))


def _hash(part: Any) -> int:
    plain = ((v.shape, *v.ravel().tolist()) if isinstance(v, np.ndarray) else v for v in _values(part))
    return hash((type(part).__name__, *(repr(v) if isinstance(v, dict) else v for v in plain)))


def _same(x: object, y: object) -> bool:
    if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
        return np.array_equal(np.asarray(x), np.asarray(y))
    return bool(x == y)


def arguments_checked(function: Callable[P, T]) -> Callable[P, T]:
    """The function, whose arguments of a foreign type are one sentence instead of an error from somewhere inside.

    They are looked at after a failure only: what a function can use is not refused for its type.
    """
    name = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*values: P.args, **settings: P.kwargs) -> T:
        try:
            return function(*values, **settings)
        except BadInput:
            raise
        except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
            given = dict(zip(inspect.signature(function).parameters, values, strict=False)) | settings
            hinted = typing.get_type_hints(function)
            check_types(cast(Any, function), {key: value for key, value in given.items() if key in hinted})
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise BadInput(f"{name} cannot use these arguments ({text})") from error

    return checked


def check_types(cls: type, settings: Mapping[str, Any]) -> None:
    """Refuse a setting whose value is not what the type hint of its field allows."""
    hints = _hints(cls)
    for name, value in settings.items():
        if name in hints and not fits(hints[name], value):  # the sentence costs more than the check
            raise BadInput(f"{name} must be {words(hints[name])}, got {shown(value)}")


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except NameError:  # a hint that is only known where the class was made
        return {}
