"""The server's state on disk: one atomic commit a round.

    STATE/manifest.json            the commit point: round, configuration, and every file with its checksum
    STATE/round-T/checkpoint.npz   all but the rows
    STATE/rows/ARRAY/CLIENT.T.npy  a client's row, as written in round T
    STATE/metrics.jsonl            one line per committed round
    STATE/lock                     held by the server that uses it

A commit writes the rows that changed under new names, then the manifest that names them, then removes what
no manifest names. A kill at any moment leaves the last commit whole.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.core import require
from fedstale.federation.state.resize import client_axes, closed, leaves, memories, opened, put_rows, replaced
from fedstale.federation.state.server_state import Book
from fedstale.runs.store import RunFolder, read_json, write, write_json

FORMAT = 1
Files = dict[str, dict[str, list[str]]]  # array → client → name and checksum


class Ledger:
    """Open with `locked()`; then `load` once and `commit` after every round."""

    def __init__(self, path: Path, run: str, blank: Callable[[int], Book]) -> None:
        """`run` is the digest of the configuration, `blank(n)` the book of round 0 with n clients."""
        self.path, self.run, self.blank = path, run, blank
        self.manifest: dict[str, Any] = {"ids": [], "rows": {}}

    @contextmanager
    def locked(self) -> Iterator[None]:
        with RunFolder(self.path).locked():
            yield

    def load(self) -> Book | None:
        """The last commit, checked; None before the first."""
        if not (self.path / "manifest.json").exists():
            return None
        m = read_json(self.path / "manifest.json")
        found, place = m.get("format"), self.path
        require(found == FORMAT, f"{place} has state format {found}, this version reads {FORMAT}")
        same = m["run"] == self.run
        require(same, f"{place} belongs to another configuration ({m['run']}, now {self.run}); use another folder")
        self._verify(m["core"], m["core_sum"])
        like = self.blank(len(m["ids"]))
        core = RunFolder(place / Path(m["core"]).parent).load_checkpoint(opened(like))
        arrays, kept = leaves(core), dict(memories(like))
        for path, files in m["rows"].items():
            rows = {k: self._row(*files[str(i)]) for k, i in enumerate(m["ids"]) if str(i) in files}
            if path in kept:
                put_rows(kept[path], rows)
            else:
                arrays[path] = leaves(like)[path]
                for k, row in rows.items():
                    arrays[path][k] = row
        self.manifest = m
        book: Book = closed(replaced(core, arrays), like)
        return book

    def commit(self, book: Book, line: dict[str, Any]) -> None:
        now, t = book.checkpoint, book.checkpoint.t
        self.path.mkdir(parents=True, exist_ok=True)
        rows = self._rows(book)
        folder = RunFolder(self.path / f"round-{t}")
        folder.path.mkdir(exist_ok=True)
        folder.save_checkpoint(_cored(book, rows))
        if t:
            with RunFolder(self.path).open_metrics(t - 1) as file:
                file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        core = f"round-{t}/checkpoint.npz"
        self.manifest = {
            "format": FORMAT, "run": self.run, "t": t, "ids": book.ids.tolist(), "roster": book.roster,
            "core": core, "core_sum": _checksum(self.path / core), "rows": rows, "d": len(now.params),
        }  # fmt: skip
        write_json(self.path / "manifest.json", self.manifest)
        self._sweep(t)

    def metrics(self) -> list[dict[str, Any]]:
        return RunFolder(self.path).metrics()

    def _rows(self, book: Book) -> Files:
        """The files of all rows, after writing those that changed."""
        ids, t, n = book.ids.tolist(), book.checkpoint.t, len(book.ids)
        fresh, arrays, anew = leaves(self.blank(n)), leaves(book), self.manifest["ids"] != book.ids.tolist()
        rows: Files = {}
        for path, memory in memories(book):
            look = memory.written > 0 if anew else memory.written == t
            rows[path] = self._written(
                path, ids, t, {k: memory.kept.read(k) for k in np.flatnonzero(look).tolist()}
            )
        for path in _row_arrays(self.blank, n):
            other = (k for k in range(n) if not np.array_equal(arrays[path][k], fresh[path][k]))
            known = (k for k, i in enumerate(ids) if str(i) in self.manifest["rows"].get(path, {}))
            rows[path] = self._written(path, ids, t, {k: arrays[path][k] for k in {*other, *known}})
        return rows

    def _written(self, path: str, ids: list[int], t: int, changed: dict[int, Any]) -> dict[str, list[str]]:
        was = self.manifest["rows"].get(path, {})
        known = {str(i): was[str(i)] for i in ids if str(i) in was}
        for k, row in sorted(changed.items()):
            known[str(ids[k])] = self._write_row(path, ids[k], t, row, known.get(str(ids[k])))
        return known

    def _row(self, name: str, checksum: str) -> Any:
        return np.load(self._verify(name, checksum), allow_pickle=False)

    def _write_row(self, path: str, client: int, t: int, row: Any, was: list[str] | None) -> list[str]:
        name = f"rows/{path.strip('/').replace('/', '.')}/{client}.{t}.npy"
        place = self.path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        write(place, lambda file: np.save(file, row))
        checksum = _checksum(place)
        if was is not None and was[1] == checksum:  # the same bytes as before: nothing to remember
            if was[0] != name:
                place.unlink()
            return was
        return [name, checksum]

    def _verify(self, name: str, checksum: str) -> Path:
        place = self.path / name
        ok = place.is_file() and _checksum(place) == checksum
        require(ok, f"{place} is damaged or missing, its checksum is not the manifest's; restore it from a backup")
        return place

    def _sweep(self, t: int) -> None:
        """Remove what the manifest does not name, now that the manifest is safe."""
        folder = os.open(self.path, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        for old in self.path.glob("round-*"):
            if old.name != f"round-{t}":
                shutil.rmtree(old, ignore_errors=True)
        named = {name for files in self.manifest["rows"].values() for name, _ in files.values()}
        for file in self.path.glob("rows/*/*"):
            if str(file.relative_to(self.path)) not in named:
                file.unlink(missing_ok=True)


def _row_arrays(blank: Callable[[int], Book], n: int) -> list[str]:
    """The arrays of the strategy's state that hold one row per client."""
    axes = client_axes(lambda k: blank(k).checkpoint.state, n)
    shapes = leaves(blank(n).checkpoint.state)
    return [f"/0/2{path}" for path, of in axes.items() if 0 in of and shapes[path].ndim > 1]


def _cored(book: Book, rows: Files) -> Any:
    """The book without its rows."""
    arrays = leaves(book)
    return replaced(opened(book), arrays | {path: arrays[path][:0] for path in rows if path in arrays})


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]
