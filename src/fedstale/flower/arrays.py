"""The arrays of a model in Flower: the parameters as one flat vector for the rule, and the buffers.

Floating-point arrays are parameters, unless their name says that they are buffers, such as the running statistics
of a BatchNorm layer. Buffers and arrays of whole numbers are averaged over the replies, as Flower's FedAvg does:
they never go through 1/p or the memory.
"""

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord

from fedstale import core
from fedstale.core import require
from fedstale.flower.federation.protocol.arrays import Slot, Values, decoded, packed
from fedstale.simulate import Diverged

BUFFERS = ("*running_mean", "*running_var", "*num_batches_tracked")  # torch's normalisation layers
FLOATS = ("float16", "float32", "float64", "bfloat16")


class Layout(NamedTuple):
    """All arrays of the model, in their order."""

    slots: tuple[Slot, ...]

    @classmethod
    def of(cls, arrays: ArrayRecord, buffers: Sequence[str]) -> "Layout":
        """The layout of these arrays; `buffers` are patterns of names, such as "*running_mean"."""
        slots = []
        for name, a in arrays.items():
            known = a.dtype == "bfloat16" or np.dtype(a.dtype).kind in "biuf"
            require(known, f"array {name!r} must hold numbers, got {a.dtype}")
            trained = a.dtype in FLOATS and not any(fnmatchcase(name, pattern) for pattern in buffers)
            slots.append(Slot(name, a.dtype, tuple(a.shape), trained))
        none = f"a model must have a floating-point array to train, got {[*arrays]}"
        require(any(s.trained for s in slots), f"{none}; trees of XGBoost are not averaged: use FedXgbBagging")
        return cls(tuple(slots))

    @property
    def parameters(self) -> tuple[Slot, ...]:
        return tuple(s for s in self.slots if s.trained)

    @property
    def buffers(self) -> tuple[Slot, ...]:
        return tuple(s for s in self.slots if not s.trained)

    def values(self, arrays: ArrayRecord) -> dict[str, Values]:
        """Name → values of all arrays; raises ValueError, with the reason, if they are not those of this layout."""
        names = {s.name for s in self.slots}
        if missing := sorted(names - {*arrays}):
            raise ValueError(f"array {missing[0]!r} is missing")
        if other := sorted({*arrays} - names):
            raise ValueError(f"array {str(other[0])[:80]!r} was not asked for")
        return {s.name: decoded(arrays[s.name], s) for s in self.slots}

    def told(self, arrays: ArrayRecord) -> dict[str, Values]:
        """The same of a reply, whose floating-point arrays may have another such dtype than the model's."""
        kinds = {name: a.dtype for name, a in arrays.items() if a.dtype in FLOATS}
        slots = (s._replace(dtype=kinds.get(s.name, s.dtype)) if s.dtype in FLOATS else s for s in self.slots)
        return Layout(tuple(slots)).values(arrays)

    def flat(self, values: Mapping[str, Values]) -> core.Array:
        """(d,) the parameters in float32; raises ValueError if one is not finite."""
        with np.errstate(over="ignore"):
            parts = [wide(values[s.name]).astype(np.float32).ravel() for s in self.parameters]
        flat: core.Array = np.concatenate(parts)
        if not np.isfinite(flat).all():
            raise ValueError("the parameters are not finite")
        return flat

    def cut(self, params: core.Array) -> dict[str, Values]:
        """Name → values of the parameters, each in its own dtype and shape."""
        stops = np.cumsum([math.prod(s.shape) for s in self.parameters])[:-1]
        parts = zip(self.parameters, np.split(params, stops), strict=True)
        return {s.name: narrow(x, s).reshape(s.shape) for s, x in parts}

    def record(self, values: Mapping[str, Values]) -> ArrayRecord:
        """All arrays as Flower sends them."""
        return ArrayRecord({s.name: Array(*packed(values[s.name])._replace(dtype=s.dtype)) for s in self.slots})


def averaged(slot: Slot, replies: Sequence[Values], weights: Sequence[float]) -> Values:
    """The mean of a buffer over the replies, by their weights; of whole numbers, rounded to the nearest."""
    total = sum(weights)
    first, *others = [wide(x) * (weight / total) for x, weight in zip(replies, weights, strict=True)]
    return narrow(sum(others, first), slot).reshape(slot.shape)


def wide(values: Values) -> Values:
    """The values as numbers that NumPy can calculate with: bfloat16 becomes float32."""
    if values.dtype.kind != "V":
        return values
    bits = np.ascontiguousarray(values).view(np.uint16).astype(np.uint32) << np.uint32(16)
    return bits.view(np.float32)


def narrow(values: Values, slot: Slot) -> Values:
    """The values in the slot's own dtype; raises Diverged if one does not fit any more."""
    if slot.dtype == "bfloat16":  # to the nearest, of two the even one
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        values = (bits >> np.uint32(16)).astype("<u2")
        fits = bool(((values & 0x7F80) != 0x7F80).all())
    else:
        with np.errstate(over="ignore"):
            values = (values if slot.dtype in FLOATS else np.rint(values)).astype(slot.dtype)
        fits = bool(np.isfinite(values).all())
    if not fits:
        why = f"array {slot.name!r} does not fit into {slot.dtype} any more"
        raise Diverged(f"{why}; a smaller learning rate may help")
    return values.view(slot.stored)
