"""Coded rows in RAM: only clients that were heard from take memory."""

import mmap
import sys
from typing import Any

import numpy as np

from fedstale.core import BadInput, Ids, require
from fedstale.memory.codings import Codes

FEW = 4096  # clients
AHEAD = 1 << 25  # bytes that are asked for at a time, as a list grows
NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


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
