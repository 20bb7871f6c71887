"""Whether a value is what a type hint says, and what that is in words."""

import collections.abc
import dataclasses
import inspect
import os
import types
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

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
    members = [name for name in dir(protocol) if not name.startswith("_")]
    if not dataclasses.is_dataclass(value):  # a task, say, which may have its attributes from anywhere
        asked = (name for name in members if not isinstance(inspect.getattr_static(protocol, name), property))
        return all(hasattr(value, name) for name in asked)
    return all(inspect.getattr_static(value, name, members) is not members for name in members)


def _sound(value: Any) -> bool:
    """No text with a NUL in it, no whole number beyond 64 bits."""
    return "\0" not in value if isinstance(value, str) else not isinstance(value, int) or abs(value) < 2**63


def _numeric(value: Any) -> bool:
    """Whether it is a number or an array of numbers; true and false are none."""
    if value is None or isinstance(value, str | bytes | Mapping):
        return False
    try:
        bits = isinstance(value, list | tuple) and bool in map(type, np.asarray(value, object).flat)
        return np.asarray(value).dtype.kind in "iuf" and not bits
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
