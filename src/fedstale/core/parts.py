"""What makes a part: a frozen dataclass that checks the names and the types of its settings.

`part` is the decorator; BadInput is the error of every setting and input that cannot be used; `fits` and `words`
read type hints, and a Range in one says which numbers a setting may be.
"""

import collections.abc
import dataclasses
import difflib
import functools
import importlib
import inspect
import operator
import os
import re
import reprlib
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ParamSpec, TypeGuard, TypeVar, cast, dataclass_transform

import numpy as np
import numpy.typing as npt

__all__ = [
    "LATER", "BadInput", "Count", "Natural", "NotNegative", "NotNegativeFinite", "Positive", "PositiveFinite",
    "PositiveShare", "Range", "Share", "able", "arguments_checked", "check_types", "imported", "keep",
    "keep_numbers", "known", "normalised", "part", "per_client", "require", "shown",
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


_SIGNS = {
    "at least": operator.ge, "[": operator.ge, "above": operator.gt, "(": operator.gt,
    "at most": operator.le, "]": operator.le, "below": operator.lt, ")": operator.lt,
}  # fmt: skip


class Range:
    """The numbers that a setting may be, in the words of the sentence that refuses others.

    `rate: Annotated[float, Range("above 0 and at most 1")]`, also with "at least", "below", "finite" or
    "in [0, 1)". Infinity is above 0, but not finite.
    """

    def __init__(self, words: str) -> None:
        self.words = words
        limits = re.findall(r"(at least|above|at most|below|\[|\() ?(-?[\d.]+)", words)
        limits += [(sign, number) for number, sign in re.findall(r"(-?[\d.]+)(\]|\))", words)]
        limits += [("below", "inf")] if "finite" in words else []
        self.limits = [(_SIGNS[sign], float(number)) for sign, number in limits]

    def __contains__(self, value: Any) -> bool:
        """Whether a number, or every number of an array, is in the range."""
        found = [holds(value, limit) for holds, limit in self.limits]
        return bool(np.all(found)) if isinstance(value, np.ndarray) else all(found)  # a number in no time

    def __repr__(self) -> str:
        return f"Range({self.words!r})"


Count = Annotated[int, Range("at least 1")]
Natural = Annotated[int, Range("at least 0")]
Positive = Annotated[float, Range("above 0")]
PositiveFinite = Annotated[float, Range("above 0 and finite")]
NotNegative = Annotated[float, Range("at least 0")]
NotNegativeFinite = Annotated[float, Range("at least 0 and finite")]
Share = Annotated[float, Range("in [0, 1]")]
PositiveShare = Annotated[float, Range("in (0, 1]")]


def keep(part: object, name: str, value: Any) -> None:
    """Set a field of a frozen part to its checked value, which is read-only if it is an array."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    object.__setattr__(part, name, value)


def keep_numbers(part: object, name: str, allowed: str) -> None:
    """Check and keep a field that is one number for all clients or one for each; `allowed` is that of a Range."""
    given = getattr(part, name)
    x = np.array(given, np.float64)
    if not (x.ndim <= 1 and x.size > 0 and x in Range(allowed)):  # to print many numbers takes longer than a round
        raise BadInput(f"{name} must be {allowed}, one or one per client, got {given}")
    keep(part, name, x if x.ndim else float(x))


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
        given = dict(zip(names, values, strict=False)) | settings
        check_ranges(made, given)
        failed: Exception | None = None
        try:
            init(self, *values, **settings)
        except BadInput:
            raise  # the part's own sentence
        except Exception as error:
            failed = error
        check_types(made, given)  # in place of the error: one traceback
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


_NO_NUMBER = (list, tuple, dict, str, types.NoneType)
_UNUSABLE = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


def arguments_checked(function: Callable[P, T]) -> Callable[P, T]:
    """The function, whose arguments of a foreign type are one sentence instead of an error from somewhere inside.

    They are looked at after a failure only: what a function can use is not refused for its type. A number outside
    the Range in its hint, a fraction for a whole number, and a list or a word for a number are refused before.
    """
    name, parameters = function.__qualname__.removesuffix(".__init__"), [*inspect.signature(function).parameters]

    @functools.wraps(function)
    def checked(*values: P.args, **settings: P.kwargs) -> T:
        given = dict(zip(parameters, values, strict=False)) | settings
        check_ranges(cast(Any, function), given)
        hints = _hints(cast(Any, function))
        plain = {key: x for key, x in given.items() if hints.get(key) in (int, float)}
        odd = {key: x for key, x in plain.items() if (x % 1 if isinstance(x, float) else isinstance(x, _NO_NUMBER))}
        check_types(cast(Any, function), odd)
        try:
            return function(*values, **settings)
        except BadInput:
            raise
        except _UNUSABLE as error:
            check_types(cast(Any, function), given)
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


def check_ranges(cls: type, settings: Mapping[str, Any]) -> None:
    """Refuse numbers that are outside the range of their field; what is no number is left to `check_types`."""
    for name, allowed in _ranges(cls).items():
        value = settings.get(name)
        number = isinstance(value, int | float | np.number)
        if (number or (isinstance(value, np.ndarray) and value.dtype.kind in "iuf")) and value not in allowed:
            raise BadInput(f"{name} must be {allowed.words}, got {value if number else shown(value)}")


@functools.cache
def _ranges(cls: type) -> dict[str, Range]:
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError:  # as in _hints
        return {}
    kinds = [(name, kind) for name, hint in hints.items() for kind in alternatives(hint)]
    noted = [(name, note) for name, kind in kinds for note in typing.get_args(kind)]
    return {name: note for name, note in noted if isinstance(note, Range)}


_PLAIN: dict[Any, tuple[str, Any]] = {
    bool: ("true or false", (bool, np.bool_)),
    int: ("a whole number", (int, np.integer)),
    float: ("a number", (int, float, np.integer, np.floating)),
    str: ("a text", str),
}


def opened(hint: Any) -> Any:
    """The hint that an alias stands for (`type Name = …`; numpy's own from Python 3.12 on), or the hint itself."""
    alias = typing.get_origin(hint) or hint
    if not hasattr(alias, "__value__"):
        return hint
    given = dict(zip(alias.__type_params__, typing.get_args(hint), strict=False))
    free = [given.get(name, Any) for name in getattr(alias.__value__, "__parameters__", ())]
    return opened(alias.__value__[*free] if free else alias.__value__)


def alternatives(hint: Any) -> list[Any]:
    """What a hint allows: the members of a union, also of one that an alias stands for; else the hint alone."""
    hint = opened(hint)
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return [kind for inner in typing.get_args(hint) for kind in alternatives(inner)] if union else [hint]


_ARRAY = {*alternatives(npt.ArrayLike)}


def fits(hint: Any, value: Any) -> bool:
    """Whether a value is what a type hint says; a list is as good as a tuple."""
    kinds = alternatives(hint)
    if len(kinds) > 1 and any(typing.get_origin(kind) is os.PathLike for kind in kinds):
        return True  # a table or the file that holds it: the part reads and checks it
    if {*kinds} >= _ARRAY:
        return _numeric(value) or any(fits(kind, value) for kind in {*kinds} - _ARRAY)
    return any(_is_a(kind, value) for kind in kinds)


def _is_a(hint: Any, value: Any) -> bool:
    """Whether a value is what a hint without alternatives says."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is collections.abc.Callable:
        return callable(value)
    if origin in (tuple, collections.abc.Sequence):
        return isinstance(value, list | tuple) and _items_fit(origin, inner, value)
    if origin is typing.Literal:
        return isinstance(value, str) and value in inner
    if hint in _PLAIN:
        right = isinstance(value, _PLAIN[hint][1]) and isinstance(value, bool | np.bool_) == (hint is bool)
        return right and _sound(value)
    if getattr(hint, "_is_protocol", False) and any(isinstance(member, property) for member in vars(hint).values()):
        return _has_members(hint, value)
    try:
        return isinstance(value, origin or hint) and not isinstance(value, type)
    except TypeError:  # a hint that cannot be asked
        return True


def _items_fit(origin: Any, inner: tuple[Any, ...], value: Any) -> bool:
    kinds = inner if origin is tuple and inner[-1] is not Ellipsis else inner[:1] * len(value)
    return len(kinds) == len(value) and all(map(fits, kinds, value))


def _has_members(protocol: type, value: Any) -> bool:
    """Whether a part has what a protocol asks for; its properties are not computed, which may take long."""
    if isinstance(value, type | np.ndarray | np.generic) or type(value).__module__ == "builtins":
        return False
    members = _members(protocol)
    if not dataclasses.is_dataclass(value):  # a task, say, which may have its attributes from anywhere
        asked = (name for name in members if not isinstance(inspect.getattr_static(protocol, name), property))
        return all(hasattr(value, name) for name in asked)
    return all(inspect.getattr_static(value, name, members) is not members for name in members)


def able(value: object, ability: Callable[..., T]) -> TypeGuard[T]:
    """`isinstance` of a protocol that is asked in every round: Python 3.11 finds its members anew each time."""
    return all(hasattr(value, name) for name in _members(ability))


@functools.cache
def _members(ability: Any) -> list[str]:
    return [name for name in dir(ability) if not name.startswith("_")]


def _sound(value: Any) -> bool:
    """No text with a NUL in it, no whole number beyond 64 bits."""
    return "\0" not in value if isinstance(value, str) else not isinstance(value, int) or abs(value) < 2**63


def _numeric(value: Any) -> bool:
    """Whether it is a number or an array of numbers; true and false are none."""
    if value is None or isinstance(value, str | bytes | Mapping):
        return False
    try:
        bits = isinstance(value, list | tuple) and bool in map(type, np.asarray(value, object).flat)
        mask = isinstance(value, np.ndarray) and value.ndim == 2  # who was there: rounds × clients
        return np.asarray(value).dtype.kind in ("iufb" if mask else "iuf") and not bits
    except (ValueError, TypeError, OverflowError, RuntimeError):  # rows of different lengths, or no array at all
        return False


def words(hint: Any) -> str:
    """What a setting with this type hint must be: "a number, an array of numbers or 'local'"."""
    hint, *others = kinds = alternatives(hint)
    if others:
        array = ["a number", "an array of numbers"] if {*kinds} >= _ARRAY else []
        rest = [words(kind) for kind in kinds if kind is not type(None) and not (array and kind in _ARRAY)]
        *first, last = array + rest
        return f"{', '.join(first)} or {last}" if first else last
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (tuple, collections.abc.Sequence):
        return f"a list of {words(inner[0]).removeprefix('a ')}s"
    if origin is typing.Literal:
        return " or ".join(map(repr, inner))
    if origin is collections.abc.Callable:
        return "a function"
    if hint in _PLAIN:
        return _PLAIN[hint][0]
    return f"a {hint.__name__}" if getattr(hint, "_is_protocol", False) else f"{(origin or hint).__name__}()"
