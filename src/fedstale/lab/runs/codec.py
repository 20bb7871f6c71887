"""State trees as arrays and JSON: what a checkpoint is made of.

A tree holds arrays, numbers, strings, tuples, lists, dicts and dataclasses. Its shape becomes JSON and its
arrays are listed under their paths; it is put together again with the types of another tree, so that nothing is
unpickled. Where the other tree has nothing, tuples, lists and dicts come back as they were. An object with
`saved()` and `restored()` (core.SavesItself) chooses its own serialised form.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from fedstale.core import SavesItself, able, require


def pack(tree: Any, path: str, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    """The shape of a tree as JSON; its arrays go to `arrays` under their paths, which begin with `path`."""
    if able(tree, SavesItself):
        tree = tree.saved()
    if isinstance(tree, np.ndarray):
        arrays[path] = tree
        return "array"
    if isinstance(tree, np.generic):
        tree = tree.item()
    if tree is None or isinstance(tree, bool | int | float | str):
        return {"value": tree}
    items = children(tree)
    allowed = "arrays, numbers, tuples, lists, dicts and dataclasses"
    require(items is not None, f"a state holds {allowed}, got {type(tree)}")
    packed = {key: pack(value, f"{path}/{key}", arrays) for key, value in items or ()}
    named = isinstance(tree, dict) and all(isinstance(key, str | int) for key in tree)
    return {"items": packed} | ({"keys": [*tree]} if named else {"list": True} if isinstance(tree, list) else {})


def children(tree: Any) -> list[tuple[str, Any]] | None:
    """The parts of a tree with their names; None if it has no parts."""
    if dataclasses.is_dataclass(tree):
        return [(f.name, getattr(tree, f.name)) for f in dataclasses.fields(tree)]
    if isinstance(tree, dict):
        return [(str(key), value) for key, value in tree.items()]
    if isinstance(tree, tuple | list):
        return [(str(key), value) for key, value in enumerate(tree)]
    return None


def unpack(shape: Any, like: Any, path: str, array: Callable[[str], Any]) -> Any:
    """The tree of a shape, with the types of `like`; `array` finds the array of a path."""
    if able(like, SavesItself):
        return like.restored(unpack(shape, like.saved(), path, array))
    if shape == "array":
        return array(path)
    if "value" in shape:
        return shape["value"]
    kinds = dict(children(like) or ())
    items = {key: unpack(inner, kinds.get(key), f"{path}/{key}", array) for key, inner in shape["items"].items()}
    return _as_it_was(shape, items) if like is None else rebuilt(like, items)


def _as_it_was(shape: Any, items: dict[str, Any]) -> Any:
    """These parts as the dict, list or tuple that they were packed from."""
    if "keys" in shape:
        return dict(zip(shape["keys"], items.values(), strict=True))
    return list(items.values()) if "list" in shape else tuple(items.values())


def rebuilt(like: Any, items: dict[str, Any]) -> Any:
    """These parts, named as `children` names them, put together as in `like`."""
    if dataclasses.is_dataclass(like):
        return dataclasses.replace(like, **items)  # type: ignore[type-var]
    if isinstance(like, dict):
        return {next((k for k in like if str(k) == key), key): value for key, value in items.items()}
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*items.values())
    return type(like)(items.values()) if isinstance(like, tuple | list) else tuple(items.values())
