"""Availability on a regular grid in which some entries are unknown, such as FLASH's phones by the half-hour."""

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Mask, keep, part, require
from fedstale.participation import recorded
from fedstale.participation.files import read_arrays, reading


@part
class Grid:
    """A table (rounds, devices) of 1 available, 0 not and -1 unknown; one line is one round.

    `grid` is the table or the path of an .npz file that holds it under the name `key`. An unknown entry
    counts as away, or as available with `unknown = true`. Clients are all devices, or the first `clients`
    that are ever available. After the last line the first follows again.
    """

    grid: npt.ArrayLike | os.PathLike[str] | str
    unknown: bool = False
    clients: int | None = None
    key: str = "avail"

    def __post_init__(self) -> None:
        path = self.grid if isinstance(self.grid, str | os.PathLike) else None
        given = self.grid if path is None else _read(Path(path), self.key)
        try:
            grid = np.array(given)
        except ValueError:  # numpy's word for rows that differ in length
            grid = np.array([])
        where = "grid" if path is None else f"{path}: {self.key}"
        ok = grid.ndim == 2 and grid.size > 0 and bool(np.isin(grid, (-1, 0, 1)).all())
        require(ok, f"{where} must be (rounds, devices) of -1, 0 and 1, got {grid.dtype} of shape {grid.shape}")
        keep(self, "grid", grid.astype(np.int8))
        recorded.first_available(self._table, self.clients)

    def probs(self, n: int) -> Array:
        return recorded.shares(self.recording(n))

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        return recorded.replay(self.recording(n))

    def recording(self, n: int | None = None) -> Mask:
        """(rounds, n) who is available; all devices if n is left out."""
        return recorded.of_width(self._table, n)

    @cached_property
    def _table(self) -> Mask:
        grid = np.asarray(self.grid)
        return recorded.first_available((grid == 1) | (self.unknown & (grid == -1)), self.clients)


def _read(path: Path, key: str) -> npt.ArrayLike:
    with reading(path, ".npz file"):
        arrays = read_arrays(path)
    require([*arrays] != [""], f"{path}: must be an .npz file, got a single array")
    require(key in arrays, f"{path}: has no array {key!r}, only {sorted(arrays)}")
    return arrays[key]
