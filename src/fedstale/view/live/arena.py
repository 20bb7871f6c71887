"""The leaderboards of contests on the page, from the records that `fedstale arena` writes beside its stores."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from fedstale.core import require
from fedstale.lab.arena.records import RECORD, read
from fedstale.view.page.arena import board
from fedstale.view.page.page import Part

KEY = "arena"  # of the page


def contests(stores: Sequence[Path]) -> list[Path]:
    """The folders of finished contests that these stores belong to."""
    return [store.parent for store in stores if (store.parent / RECORD).exists()]


class Arena:
    """The leaderboards of some stores; a contest is read again when its record changes."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[int, Part]] = {}

    def part(self, stores: Sequence[Path]) -> Part:
        """One section with all contests."""
        found = contests(stores)
        require(bool(found), "there is no finished contest in these folders: `fedstale arena run` holds one")
        parts = {folder: self._part(folder) for folder in found}
        whole = [f"<h2>{escape(p.title)}</h2>{p.above}" for p in parts.values()]
        cells = "<p>Every cell with its curves: {}</p>".format
        below = [p.below + cells(escape(str(folder / "page.html"))) for folder, p in parts.items()]
        return Part("Arena", "".join(whole), [plot for p in parts.values() for plot in p.plots], "".join(below))

    def _part(self, folder: Path) -> Part:
        stamp = (folder / RECORD).stat().st_mtime_ns
        if folder not in self._read or self._read[folder][0] != stamp:
            self._read[folder] = stamp, board(read(folder))
        return self._read[folder][1]
