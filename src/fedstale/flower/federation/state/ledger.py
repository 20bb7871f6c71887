"""The server's state on disk: one atomic commit per round.

    STATE/manifest.json            the commit point: round, configuration, and every file with its checksum
    STATE/round-T/checkpoint.npz   everything but the rows of memories
    STATE/rows/MEMORY/CLIENT.T.npy a client's row of a memory, as written in round T
    STATE/metrics.jsonl            one line per committed round
    STATE/lock                     held by the server that uses the state

A commit writes the rows that changed under new names, then the manifest that names them, then removes the files
that the manifest does not name. A kill at any moment leaves the last commit whole. Only the owner can read it.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.core import require
from fedstale.flower.federation.state import manifest, resize
from fedstale.flower.federation.state.backup import unswept
from fedstale.flower.federation.state.server_state import ServerState
from fedstale.lab.runs.store import RunFolder, sync, write

Named = list[str]  # the name of a file and its checksum
Files = dict[str, dict[str, Named]]  # array → client → file


class Ledger:
    """Open with `locked()`; then `load` once and `commit` after every round."""

    def __init__(self, path: Path, run: str, initial: Callable[[int], ServerState]) -> None:
        """`run` is the digest of the configuration, `initial(n)` the state before round 1 with n clients."""
        self.path, self.run, self.initial = path, run, initial
        self.ids: list[int] = []  # of the last commit, with its row files and the length of its metrics
        self.rows: Files = {}
        self.metrics_end, self.metrics_sum = 0, ""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Use the state alone; it is made if it is not there."""
        manifest.read_manifest(self.path)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with RunFolder(self.path).locked():
            yield

    def load(self) -> ServerState | None:
        """The state of the last commit, checked; None before the first."""
        m = manifest.read_manifest(self.path)
        if m is None:
            return None
        own = f"{self.path} belongs to another configuration ({m['run']}, now {self.run}); use another folder"
        require(m["run"] == self.run, own)
        like = self.initial(len(m["ids"]))
        folder = RunFolder(manifest.verified(self.path, *m["checkpoint"]).parent)
        core: ServerState = folder.load_checkpoint(resize.without_rows(like))
        arrays, memories, fresh = resize.arrays_of(core), dict(resize.memories(core)), resize.arrays_of(like)
        for path, files in m["rows"].items():
            there = [(k, files[str(i)]) for k, i in enumerate(m["ids"]) if str(i) in files]
            rows = {k: np.load(manifest.verified(self.path, *file)) for k, file in there}
            if path in memories:
                resize.put_rows(memories[path], rows)
            else:  # written by a version that kept the rows of arrays in files, too
                arrays[path] = fresh[path]
                for k, row in rows.items():
                    arrays[path][k] = row
        self.ids, self.rows = m["ids"], m["rows"]
        lines = manifest.metric_lines(self.path, m)
        self.metrics_end, self.metrics_sum = sum(len(line) + 1 for line in lines), manifest.chained(lines)
        return resize.with_arrays(core, arrays, core)

    def commit(self, state: ServerState, line: dict[str, Any]) -> None:
        """Make the state, and the line of metrics of its round, the ones that `load` finds."""
        t, rows = state.checkpoint.t, self._write_rows(state)
        folder = RunFolder(self.path / f"round-{t}")
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.save_checkpoint(resize.without_rows(state))
        if t:
            self._append(json.dumps(line, separators=(",", ":")).encode())
        core = f"round-{t}/checkpoint.npz"
        committed = {"run": self.run, "t": t, "ids": state.ids.tolist(), "roster": state.roster, "rows": rows}
        committed |= {"checkpoint": [core, manifest.checksum(self.path / core)], "metrics": self.metrics_sum}
        manifest.write_manifest(self.path, committed)
        self.ids, self.rows = state.ids.tolist(), rows
        self._sweep(t)

    def _append(self, line: bytes) -> None:
        """Add a line to the committed ones; a line that was written and never committed is cut off."""
        with (self.path / "metrics.jsonl").open("ab") as file:
            file.truncate(self.metrics_end)
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.metrics_end += len(line) + 1
        self.metrics_sum = manifest.chained([line], self.metrics_sum)

    def _write_rows(self, state: ServerState) -> Files:
        """The files of the rows of all memories, after writing those that changed."""
        ids, t, rows = state.ids.tolist(), state.checkpoint.t, Files()
        for path, memory in resize.memories(state):
            changed = memory.written == t if self.ids == ids else memory.written > 0
            new = {ids[k]: memory.kept.read(k) for k in np.flatnonzero(changed).tolist()}
            there = [i for i, written in zip(ids, memory.written, strict=True) if written]
            rows[path] = self._files(path, there, t, new)
        return rows

    def _files(self, path: str, ids: list[int], t: int, new: dict[int, Any]) -> dict[str, Named]:
        """The files of the rows of these clients in one memory: those of the last commit, and of the new rows."""
        files = {str(i): file for i in ids if (file := self.rows.get(path, {}).get(str(i)))}
        for i, row in new.items():
            place = self.path / (name := f"rows/{path.strip('/').replace('/', '.')}/{i}.{t}.npy")
            place.parent.mkdir(parents=True, exist_ok=True)
            write(place, partial(np.save, arr=row))
            files[str(i)] = [name, manifest.checksum(place)]
        return files

    def _sweep(self, t: int) -> None:
        """Remove the files that the manifest, now on the disk, does not name; later if somebody copies them."""
        sync(self.path)
        with unswept(self.path, shared=False) as allowed:
            if not allowed:
                return
            for old in self.path.glob("round-*"):
                if old.name != f"round-{t}":
                    shutil.rmtree(old, ignore_errors=True)
            named = {name for files in self.rows.values() for name, _ in files.values()}
            for file in self.path.glob("rows/*/*"):
                if str(file.relative_to(self.path)) not in named:
                    file.unlink(missing_ok=True)
