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
from fedstale.federation.state.resize import (
    arrays_of,
    client_axes,
    memories,
    put_rows,
    with_arrays,
    with_memories,
    without_rows,
)
from fedstale.federation.state.server_state import ServerState
from fedstale.runs.store import RunFolder, read_json, write, write_json

FORMAT = 1
Files = dict[str, dict[str, list[str]]]  # array → client → name and checksum


class Ledger:
    """Open with `locked()`; then `load` once and `commit` after every round."""

    def __init__(self, path: Path, run: str, initial: Callable[[int], ServerState]) -> None:
        """`run` is the digest of the configuration, `initial(n)` the state of round 0 with n clients."""
        self.path, self.run, self.initial = path, run, initial
        self.manifest: dict[str, Any] = {"ids": [], "rows": {}}

    @contextmanager
    def locked(self) -> Iterator[None]:
        with RunFolder(self.path).locked():
            yield

    def load(self) -> ServerState | None:
        """The last commit, checked; None before the first."""
        if not (self.path / "manifest.json").exists():
            return None
        m = read_json(self.path / "manifest.json")
        found, place = m.get("format"), self.path
        require(found == FORMAT, f"{place} has state format {found}, this version reads {FORMAT}")
        same = m["run"] == self.run
        require(same, f"{place} belongs to another configuration ({m['run']}, now {self.run}); use another folder")
        self._verify(m["core"], m["core_sum"])
        like = self.initial(len(m["ids"]))
        core = RunFolder(place / Path(m["core"]).parent).load_checkpoint(without_rows(like))
        arrays, kept = arrays_of(core), dict(memories(like))
        for path, files in m["rows"].items():
            rows = {k: self._row(*files[str(i)]) for k, i in enumerate(m["ids"]) if str(i) in files}
            if path in kept:
                put_rows(kept[path], rows)
            else:
                arrays[path] = arrays_of(like)[path]
                for k, row in rows.items():
                    arrays[path][k] = row
        self.manifest = m
        state: ServerState = with_memories(with_arrays(core, arrays), like)
        return state

    def commit(self, state: ServerState, line: dict[str, Any]) -> None:
        now, t = state.checkpoint, state.checkpoint.t
        self.path.mkdir(parents=True, exist_ok=True)
        rows = self._rows(state)
        folder = RunFolder(self.path / f"round-{t}")
        folder.path.mkdir(exist_ok=True)
        folder.save_checkpoint(_cored(state, rows))
        if t:
            with RunFolder(self.path).open_metrics(t - 1) as file:
                file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        core = f"round-{t}/checkpoint.npz"
        self.manifest = {
            "format": FORMAT, "run": self.run, "t": t, "ids": state.ids.tolist(), "roster": state.roster,
            "core": core, "core_sum": _checksum(self.path / core), "rows": rows, "d": len(now.params),
        }  # fmt: skip
        write_json(self.path / "manifest.json", self.manifest)
        self._sweep(t)

    def metrics(self) -> list[dict[str, Any]]:
        return RunFolder(self.path).metrics()

    def _rows(self, state: ServerState) -> Files:
        """The files of all rows, after writing those that changed."""
        ids, t, n = state.ids.tolist(), state.checkpoint.t, len(state.ids)
        fresh, arrays, anew = (
            arrays_of(self.initial(n)),
            arrays_of(state),
            self.manifest["ids"] != state.ids.tolist(),
        )
        rows: Files = {}
        for path, memory in memories(state):
            look = memory.written > 0 if anew else memory.written == t
            rows[path] = self._written(
                path, ids, t, {k: memory.kept.read(k) for k in np.flatnonzero(look).tolist()}
            )
        for path in _row_arrays(self.initial, n):
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


def _row_arrays(initial: Callable[[int], ServerState], n: int) -> list[str]:
    """The arrays of the strategy's state that hold one row per client."""
    axes = client_axes(lambda k: initial(k).checkpoint.state, n)
    shapes = arrays_of(initial(n).checkpoint.state)
    return [f"/0/2{path}" for path, of in axes.items() if 0 in of and shapes[path].ndim > 1]


def _cored(state: ServerState, rows: Files) -> Any:
    """The state without its rows."""
    arrays = arrays_of(state)
    return with_arrays(without_rows(state), arrays | {path: arrays[path][:0] for path in rows if path in arrays})


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]
