"""What a training loop keeps of a client between rounds, as plain arrays and numbers that a checkpoint can hold."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstale.core import BadInput, require

TENSOR = "torch.Tensor"  # the only key of a dict that stands for a tensor
ALLOWED = "tensors, arrays, numbers, texts, tuples, lists and dicts"


def stored(value: Any, where: str = "context.state") -> Any:
    """A copy of a tree, with tensors as arrays; refuses what cannot be stored."""
    if isinstance(value, Tensor):
        return {TENSOR: _array(value, where)}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.copy()
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        _check_keys([*value], where)
        return {key: stored(inner, f"{where}[{key!r}]") for key, inner in value.items()}
    require(isinstance(value, list | tuple), f"a client can keep {ALLOWED}, got {type(value).__name__} in {where}")
    items = [stored(inner, f"{where}[{k}]") for k, inner in enumerate(value)]
    return items if isinstance(value, list) else tuple(items)


def restored(value: Any) -> Any:
    """The tree that `stored` was given; a copy, with its tensors on the CPU."""
    if isinstance(value, dict):
        if [*value] == [TENSOR]:
            return torch.from_numpy(value[TENSOR].copy())
        return {key: restored(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(restored, value))
    return value.copy() if isinstance(value, np.ndarray) else value


def _array(tensor: Tensor, where: str) -> Any:
    try:
        return tensor.detach().cpu().numpy().copy()
    except (TypeError, RuntimeError) as error:  # a type that numpy lacks, or a sparse tensor
        raise BadInput(f"a client can keep tensors that numpy knows, got {tensor.dtype} in {where}") from error


def _check_keys(keys: list[Any], where: str) -> None:
    """Refuse keys that would not be told apart in a file."""
    odd = [key for key in keys if not isinstance(key, int | str) or "/" in str(key)]
    require(not odd, f"keys must be whole numbers, or texts without a slash, got {odd[:1]} in {where}")
    require(len({*map(str, keys)}) == len(keys), f"keys must differ as texts, got {keys} in {where}")
