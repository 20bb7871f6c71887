"""Rows: how one is coded, in four, two or one byte a coordinate, and all of them in RAM (`file.py`: in a file).

A coded row is `codes · scale`. Reading a row gives the decoded values, also to the code that wrote it. So a
rule that needs *some* h_i, the same in all its terms, stays unbiased whatever the coding loses.
"""

import mmap
import sys
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, BadInput, Ids, part, require

Codes = npt.NDArray[Any]
Keys = npt.NDArray[np.uint32]

NOTHING = np.float32(1e-30)  # a row without a larger number is stored as zeros
FEW = 4096  # clients whose rows are in order
AHEAD = 1 << 25  # bytes that are asked for at a time, as a list grows
NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


@runtime_checkable
class Coding(Protocol):
    """How rows are stored: with `scaled`, as codes of type `dtype` and a scale for each row."""

    @property
    def folder(self) -> str | None: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def scaled(self) -> bool: ...
    def scales(self, largest: Array) -> tuple[Array, Array]:
        """(m,) each: scale and 1 / scale of rows whose largest magnitudes are these."""

    def decode(self, codes: Codes, scale: Array) -> Array: ...
    def encode(self, values: Array, inverse: Array, keys: Keys, first: int) -> Codes:
        """Codes of (m, b) values, coordinates `first` on; `keys` (m, 2) are random words of client and round."""


@part
class Float32:
    """Rows as they are, 4 bytes a coordinate; with a folder, in a file there instead of in RAM."""

    folder: str | None = None
    dtype: ClassVar[Any] = np.float32
    scaled: ClassVar[bool] = False

    def scales(self, largest: Array) -> tuple[Array, Array]:
        return np.ones_like(largest), np.ones_like(largest)

    def decode(self, codes: Codes, scale: Array) -> Array:
        return codes

    def encode(self, values: Array, inverse: Array, keys: Keys, first: int) -> Codes:
        return values


@part
class AtClients(Float32):
    """Rows that the clients keep themselves: the server has their sum, O(d) in the place of O(n d).

    For rules that are split (`core.Splits`). With a folder, a simulation has the clients' rows in a file there.
    """


@part
class OnDevice(Float32):
    """Rows as they are, where updates stay: a simulation takes it for a task with `aggregate="device"`."""

    place: Any = None  # a DeviceArray there


@part
class Float16:
    """2 bytes a coordinate, rounded to the nearest: off by 2⁻¹¹ of each number.

    The scale of a row is a power of two that puts its largest number below 2¹⁵, so that neither large
    nor tiny updates leave the range of float16.
    """

    folder: str | None = None
    dtype: ClassVar[Any] = np.float16
    scaled: ClassVar[bool] = True

    def scales(self, largest: Array) -> tuple[Array, Array]:
        """(scale, 1 / scale) of rows with these largest numbers."""
        exponent = np.where(largest > NOTHING, np.frexp(largest)[1] - 15, 0)
        some = (largest > NOTHING).astype(np.float32)
        return np.ldexp(some, exponent), np.ldexp(some, -exponent)

    def decode(self, codes: Codes, scale: Array) -> Array:
        return codes.astype(np.float32) * scale

    def encode(self, values: Array, inverse: Array, keys: Keys, first: int) -> Codes:
        return (values * inverse).astype(np.float16)


@part
class Int8:
    """1 byte a coordinate, rounded up or down at random so that the mean is exact.

    The scale of a row is its largest number / 127, so a coordinate is off by at most that, and its
    variance is at most a quarter of the scale squared. The randomness is a function of client, round
    and coordinate: nothing is kept, and a resumed run draws the same.
    """

    folder: str | None = None
    dtype: ClassVar[Any] = np.int8
    scaled: ClassVar[bool] = True

    def scales(self, largest: Array) -> tuple[Array, Array]:
        """(scale, 1 / scale) of rows with these largest numbers; rounding never reaches beyond 127."""
        steps, some = np.float32(126.999), largest > NOTHING
        safe = np.where(some, largest, np.float32(1))
        return np.where(some, safe / steps, np.float32(0)), np.where(some, steps / safe, np.float32(0))

    def decode(self, codes: Codes, scale: Array) -> Array:
        return codes.astype(np.float32) * scale

    def encode(self, values: Array, inverse: Array, keys: Keys, first: int) -> Codes:
        y = values * inverse
        down = np.floor(y)
        up = _uniform(keys, first, values.shape[1]) < y - down  # with a chance of y - down
        codes: Codes = (down + up).astype(np.int8)
        return codes


def keys(clients: npt.NDArray[np.int64], t: int) -> Keys:
    """(m, 2) two words for each client and round, by the finaliser of splitmix64."""
    x = (clients.astype(np.uint64) << np.uint64(32)) ^ np.array([t], np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    words = np.stack([x & np.uint64(0xFFFFFFFF), (x >> np.uint64(32)) | np.uint64(1)], axis=1)
    return words.astype(np.uint32)


def _uniform(keys: Keys, first: int, count: int) -> Array:
    """(m, count) numbers in [0, 1) of 24 bits for the coordinates from `first` on."""
    x = np.arange(first, first + count, dtype=np.uint32) * np.uint32(0x9E3779B1) + keys[:, :1]
    x ^= x >> np.uint32(16)
    x *= keys[:, 1:]
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x735A2D97)
    x >>= np.uint32(8)
    return x.astype(np.float32) * np.float32(2**-24)


class Ram:
    """Rows in one array, whose pages are allocated when they are first written.

    Up to FEW clients have their rows in order. More have them in the order in which they were first heard, so
    that clients that never take part need no memory.
    """

    def __init__(self, n: int, d: int, dtype: Any) -> None:
        self.ordered = n <= FEW
        self.index: Ids = np.arange(n) if self.ordered else np.full(n, -1)  # (n,) the place of each client's row
        self.count = self.ready = n if self.ordered else 0  # rows in use, rows for which there is memory
        self.codes = _zeros(n, d, dtype)

    def take(self, clients: Ids) -> tuple[Codes, Ids]:
        """The codes of all rows and the places of these; a new row is zero."""
        new = clients[self.index[clients] < 0]
        self.index[new] = np.arange(self.count, self.count + len(new))
        self.count += len(new)
        if self.count > self.ready:
            ready = self.count + AHEAD // self.codes[0].nbytes
            self.codes[self.ready : ready] = 0
            self.ready = ready
        return self.codes, self.index[clients]

    def put(self, clients: Ids, codes: Codes) -> None:
        """Nothing to do: the rows were changed in place."""

    def read(self, client: int) -> Codes:
        """(d,) the codes of one row, zeros before the first update."""
        place = self.index[client]
        return self.codes[place] if place >= 0 else np.zeros_like(self.codes, shape=self.codes.shape[1])

    def saved(self) -> dict[str, Any]:
        """What a checkpoint holds: the rows in use."""
        return {"codes": self.codes[: self.count]} | ({} if self.ordered else {"index": self.index})

    def restored(self, saved: dict[str, Any]) -> "Ram":
        """The rows of a checkpoint."""
        codes, dtype = saved["codes"], self.codes.dtype
        require(codes.dtype == dtype, f"the rows of the checkpoint must be {dtype}, got {codes.dtype}")
        ram = Ram(0, codes.shape[1], dtype)
        ram.ordered, ram.count, ram.ready = "index" not in saved, len(codes), len(codes)
        if ram.ordered:
            ram.index, ram.codes = np.arange(len(codes)), codes
        else:
            ram.index, ram.codes = saved["index"], _zeros(len(saved["index"]), codes.shape[1], dtype)
            ram.codes[: len(codes)] = codes
        return ram

    def __reduce__(self) -> Any:
        clients = np.flatnonzero(self.index >= 0)
        return Ram, (*self.codes.shape, self.codes.dtype), (clients, self.codes[self.index[clients]])

    def __setstate__(self, state: tuple[Ids, Codes]) -> None:
        clients, rows = state
        codes, places = self.take(clients)
        codes[places] = rows


def _zeros(n: int, d: int, dtype: Any) -> Codes:
    """(n, d) zeros, far more than there is memory for if need be: only what is touched is used."""
    size = max(1, n * d * np.dtype(dtype).itemsize)
    try:
        block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    except (OSError, OverflowError, ValueError) as error:
        raise BadInput(f"{n} rows of {d} numbers take {size:,} bytes ({error}); keep them in a folder") from None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(block, dtype, n * d).reshape(n, d)
