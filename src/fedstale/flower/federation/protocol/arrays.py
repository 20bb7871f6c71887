"""Arrays on the wire, as Flower serialises them: .npy files, never pickled."""

import math
from collections import namedtuple
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

NUMPY = "numpy.ndarray"
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
Values = npt.NDArray[Any]


class Slot(NamedTuple):
    """An array that is expected: of the model, or of a message."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    trained: bool  # whether it is a parameter, which the rule sees

    @property
    def stored(self) -> np.dtype[Any]:
        """The dtype in the .npy file: NumPy has no bfloat16 and stores its bytes as they are."""
        return np.dtype("V2" if self.dtype == "bfloat16" else self.dtype)


class Packed(namedtuple("Packed", "dtype shape stype data")):
    """The fields of Flower's Array as they arrived: any of them may have any type."""

    __slots__ = ()


def packed(values: Values) -> Packed:
    """The fields of Flower's Array with these values."""
    file = BytesIO()
    np.save(file, values, allow_pickle=False)
    return Packed(str(values.dtype), values.shape, NUMPY, file.getvalue())


def decoded(array: Any, slot: Slot) -> Values:
    """The values of an Array, or of its fields, that anybody may have written; raises ValueError, with the reason.

    Nothing is allocated for a shape that is not the slot's, and nothing is unpickled.
    """
    name = slot.name
    try:
        stype, dtype, shape, data = array.stype, array.dtype, tuple(array.shape), array.data
    except (AttributeError, TypeError):
        raise ValueError(f"array {name!r} is no array") from None
    if stype != NUMPY or type(data) is not bytes:
        raise ValueError(f"array {name!r} is not serialised as a NumPy array")
    if dtype != slot.dtype:
        raise ValueError(f"array {name!r} must be {slot.dtype}, got {str(dtype)[:40]}")
    if shape != slot.shape or any(type(size) is not int for size in shape):
        raise ValueError(f"array {name!r} must have the shape {slot.shape}, got {str(shape)[:80]}")
    file = BytesIO(data)
    try:
        shape, fortran, stored = HEADERS[np.lib.format.read_magic(file)](file)
    except Exception:  # whatever a hostile header makes the parser do
        raise ValueError(f"array {name!r} is not a .npy file") from None
    body = memoryview(data)[file.tell() :]
    if (shape, stored) != (slot.shape, slot.stored) or len(body) != math.prod(shape) * stored.itemsize:
        raise ValueError(f"array {name!r} is not what its header says")
    return np.frombuffer(body, stored).reshape(shape, order="F" if fortran else "C")
