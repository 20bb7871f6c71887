"""Runs on disk: one folder per run, named by the content of its configuration.

    STORE/fedstale-store.json      marks the folder as ours
    STORE/RUN/config.json          the resolved configuration, which the name is made of
    STORE/RUN/environment.json     versions, machine, git state, command
    STORE/RUN/metrics.jsonl        one line per round, append-only, the same bytes however often interrupted
    STORE/RUN/checkpoint.npz       the latest checkpoint, while the run is not finished
    STORE/RUN/last.npz             the last checkpoint of a finished run, if it is small, for longer runs and forks
    STORE/RUN/params.npy           the final parameters
    STORE/RUN/buffers.npy          the final buffers of a model whose buffers training changes
    STORE/RUN/states.npz           what clients keep at the end, if they keep anything (see client_states)
    STORE/RUN/model.json           names, shapes and types of what the parameters and buffers are made of
    STORE/RUN/clients.json         of each client its weight and how well the final parameters serve it
    STORE/RUN/status.json          how far the run is, replaced about once a second (see runs/status.py)
    STORE/RUN/stop                 another process asks for the run to be stopped, as by Ctrl-C
    STORE/RUN/checksums.json       of the files of a finished run (see runs/checks.py)
    STORE/RUN/result.json          written last: a run is finished when it is there
    STORE/RUN/diverged.json        why the run cannot be finished, and the version of the code that says so

A file is written beside its place and moved there, so that a kill at any moment leaves the old or the new one.
From the first checkpoint on a run also waits until its files are on the disk. A power cut may tear the files of a
shorter run, which it may lose anyway: their checksums show it, and the run is computed again.
"""

import csv
import dataclasses
import hashlib
import io
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import IO, Any, cast

import numpy as np

from fedstale.core import Array, BadInput, Clients, Floats, require
from fedstale.core.system import lock
from fedstale.lab.runs import checks
from fedstale.lab.runs.codec import pack, unpack

MARKER = "fedstale-store.json"
FORMAT = 1
COMPUTED = (
    "clients.json", "model.json", "params.npy", "buffers.npy", "states.npz", "last.npz", "metrics.jsonl",
    "status.json", "diverged.json",
)  # besides the result and the checkpoint  # fmt: skip
TRIES, PAUSE = 5, 0.02  # a lock is tried again after so many seconds: `busy` may hold it for a moment


def open_store(folder: Path) -> Path:
    """The folder, made and marked as a store; a folder with other things in it is refused."""
    marker = folder / MARKER
    if not marker.exists():
        strangers = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        require(not strangers, f"{folder} is not a fedstale store and not empty; choose another output folder")
        folder.mkdir(parents=True, exist_ok=True)
        write_json(marker, {"format": FORMAT})
    found = read_json(marker).get("format")
    require(found == FORMAT, f"{folder} has store format {found}, this version reads {FORMAT}")
    return folder


def runs(folder: Path) -> list["RunFolder"]:
    """All runs of a store, by name."""
    require(folder.exists(), f"there is no folder {folder}; `fedstale run` stores its runs there, -o names another")
    require((folder / MARKER).exists(), f"{folder} is not a fedstale store: it has no {MARKER}")
    found = {p.parent for name in ("config.json", "result.json") for p in folder.glob(f"*/{name}")}
    return [RunFolder(path) for path in sorted(found)]


def run_name(label: str, seed: int, config: dict[str, Any]) -> str:
    """`fedstale-0.5-s1-1f3a9c04b2`: readable, and the same for the same configuration."""
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', label).strip('-').lower()}-s{seed}-{digest(config)}"


def digest(config: dict[str, Any]) -> str:
    """The end of a run's name: ten characters that tell a configuration from all others."""
    return hashlib.sha256(canonical(config).encode()).hexdigest()[:10]


def canonical(config: dict[str, Any]) -> str:
    """The configuration as text that is the same for the same content."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"), default=as_text)


def as_text(value: object) -> str:
    """What JSON lacks as text; a function as module:name, which is the same in every process."""
    if isinstance(value, type | FunctionType):
        return f"{value.__module__}:{value.__qualname__}"
    return str(value)


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The folder of one run: reads and writes the files named above."""

    path: Path

    @property
    def finished(self) -> bool:
        """Whether there is a result that can be read; a damaged one is written anew when the run is resumed."""
        try:
            return bool(self.result())
        except BadInput:
            return False

    @property
    def started(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return (self.path / "checkpoint.npz").exists()

    def config(self) -> dict[str, Any]:
        """The resolved configuration, which the name of the run is made of."""
        path = self.path / "config.json"
        config = read_json(path)
        checks.require_whole(path)
        checks.require_named(path, config, digest({k: v for k, v in config.items() if k != "tuned"}))
        return config

    def environment(self) -> dict[str, Any]:
        """Where and how the run was computed; nothing where that is not known."""
        path = self.path / "environment.json"
        checks.require_whole(path)
        return read_json(path) if path.exists() else {}

    def result(self) -> dict[str, Any]:
        """The metrics at the end, and what the run took."""
        path = self.path / "result.json"
        result = read_json(path)
        checks.require_result(path, result)
        checks.require_whole(path)
        return result

    def clients(self) -> dict[str, list[Any]]:
        """Per name one value for each client; nothing where there are too many, or the run is older than this."""
        path = self.path / "clients.json"
        found = read_json(path) if path.exists() else {}
        checks.require_clients(path, found)
        checks.require_whole(path)
        return found

    def client_name(self, client: int) -> str:
        """The client's own name if it has one, else `client 7`."""
        names = self.clients().get("name", [])
        return str(names[client]) if client < len(names) else f"client {client}"

    def metrics(self) -> list[dict[str, Any]]:
        """The complete lines, one a round; a last line that a kill cut off is left out."""
        path = self.path / "metrics.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        found = [metrics_line(path, k, line) for k, line in enumerate(lines, 1)]
        checks.require_whole(path)
        return found

    def diverged(self, code: str) -> str | None:
        """Why the run cannot be finished, if this code has found that out; other code may fare better."""
        path = self.path / "diverged.json"
        known = read_json(path) if path.exists() else {}
        return str(known.get("why")) if known.get("code") == code else None

    def clear(self) -> None:
        """Delete what was computed, the result first: a kill in between leaves an unfinished run."""
        (self.path / "result.json").unlink(missing_ok=True)
        self.drop_checkpoint()
        for name in (checks.FILE, *COMPUTED):
            (self.path / name).unlink(missing_ok=True)

    def drop_checkpoint(self) -> None:
        """Remove the checkpoint and the rows of a memory that it refers to."""
        (self.path / "checkpoint.npz").unlink(missing_ok=True)
        for rows in self.path.rglob("memory-*.rows"):
            rows.unlink(missing_ok=True)

    def rounds_recorded(self) -> int:
        """Rounds with a line of metrics."""
        path = self.path / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from computing this run, and sweep what a killed one left half-written."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("w") as file:
            for _ in range(TRIES):
                if taken := lock(file):  # it ends with the process
                    break
                time.sleep(PAUSE)
            way = f"`fedstale watch {self.path.parent}` shows how far it is"
            require(taken, f"{self.path} is being computed by another process; {way}")
            for left in self.path.glob(".*.*"):
                if left.suffix[1:].isdigit():  # .NAME.PROCESS of `write`, whose process had this lock
                    left.unlink()
            yield

    @property
    def busy(self) -> bool:
        """Whether a process computes this run at the moment."""
        try:
            with (self.path / "lock").open() as file:
                return not lock(file, shared=True)  # closing the file gives it back
        except OSError:
            return False

    @property
    def stop_asked(self) -> bool:
        """Whether another process wants this run to stop."""
        return (self.path / "stop").exists()

    def ask_stop(self) -> None:
        """Stop the process that computes this run, within about a second: with a checkpoint, as by Ctrl-C."""
        (self.path / "stop").touch()

    def forget_stop(self) -> None:
        """A process that begins to compute this run has not been asked to stop."""
        (self.path / "stop").unlink(missing_ok=True)

    def open_metrics(self, rounds: int) -> IO[bytes]:
        """The metrics file, cut back to its first `rounds` lines, which must be sound, open for appending."""
        path = self.path / "metrics.jsonl"
        path.touch()
        with path.open("rb") as file:
            for _ in range(rounds):
                complete = file.readline().endswith(b"\n")
                require(complete, f"{path} is shorter than its checkpoint")
            end = file.tell()
        os.truncate(path, end)
        self.metrics()
        return path.open("ab")

    def save_checkpoint(self, tree: Any) -> None:
        """Replace the checkpoint by this state tree; see codec for what a tree may hold."""
        write_tree(self.path / "checkpoint.npz", tree)

    def load_checkpoint(self, like: Any) -> Any:
        """The latest checkpoint, with the types of `like`: nothing foreign is ever unpickled."""
        return read_tree(self.path / "checkpoint.npz", like)

    def params(self) -> Array:
        """The final parameters, if they are those that the result has the fingerprint of."""
        path = self.path / "params.npy"
        checks.require_whole(path)
        params = np.asarray(_vector(path), np.float32)
        known = self.result().get("fingerprint") if self.finished else None
        require(known in (None, fingerprint(params)), f"{path} is damaged: it has not the result's fingerprint")
        return params

    def buffers(self) -> Floats | None:
        """The final buffers of the model; None if training changed none."""
        path = self.path / "buffers.npy"
        checks.require_whole(path)
        return np.asarray(_vector(path), np.float64) if path.exists() else None

    def client_states(self) -> Clients | None:
        """What each client kept at the end; None if clients keep nothing."""
        path = self.path / "states.npz"
        checks.require_whole(path)
        return cast(Clients, read_tree(path, Clients())) if path.exists() else None

    @property
    def damage(self) -> str:
        """What is wrong with a file of a finished run, if anything is; each version of a file is read once."""
        if (self.path / checks.FILE).exists() or not self.finished:
            return checks.damage(self.path)
        try:  # of an earlier version: what can be compared with its fingerprint or has a shape
            self.clients(), self.metrics(), self.buffers()
            _ = self.params() if (self.path / "params.npy").exists() else None
        except BadInput as error:
            return str(error)
        return ""

    def save_result(self, result: dict[str, Any], durable: bool = True) -> None:
        """Write the checksums of all files, and then the result, which ends the run."""
        text = _json(result)
        write_json(self.path / checks.FILE, checks.taken(self.path, text), durable)
        write(self.path / "result.json", lambda f: f.write(text), durable)

    def save_client_states(self, clients: Clients | None, durable: bool = True) -> None:
        """Write what each client keeps, if any does."""
        if clients:
            write_tree(self.path / "states.npz", clients, durable)

    def save_params(self, params: Array, buffers: Floats | None = None, durable: bool = True) -> None:
        """Write the final parameters and the buffers, if there are any."""
        write(self.path / "params.npy", lambda f: np.save(f, params), durable)
        if buffers is not None:
            write(self.path / "buffers.npy", lambda f: np.save(f, buffers), durable)


def _vector(path: Path) -> Any:
    try:
        found = np.load(path, allow_pickle=False)
        require(found.ndim == 1 and found.dtype.kind == "f", f"it holds {found.dtype}{found.shape}, no vector")
        return found
    except Exception as error:  # damage shows as any error, as in a checkpoint
        raise BadInput(f"{path} cannot be read ({type(error).__name__}: {error})") from None


def write(path: Path, writer: Callable[[IO[bytes]], Any], durable: bool = True, mode: int = 0o666) -> None:
    """Write a whole file or none of it: beside its place, to the disk if it is `durable`, and then to its place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path), open(temporary, "wb", opener=partial(os.open, mode=mode)) as file:
            writer(file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the disk name this file or folder; a full disk names none."""
    try:
        yield
    except OSError as error:
        if error.errno:
            error.filename = error.filename or str(path)
        raise


def write_tree(path: Path, tree: Any, durable: bool = True) -> None:
    """Write a state tree; see codec for what it may hold."""
    arrays: dict[str, Any] = {}
    structure = np.array(json.dumps(pack(tree, "a", arrays)))
    write(path, lambda f: np.savez(f, **arrays, structure=structure), durable)


def read_tree(path: Path, like: Any) -> Any:
    """The state tree in a file, with the types of `like`: nothing foreign is ever unpickled."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return unpack(json.loads(str(file["structure"])), like, "a", lambda key: file[key])
    except Exception as error:  # damage shows as any error of zipfile, zlib, numpy or json, or of a part
        raise BadInput(f"{path} cannot be read ({type(error).__name__}: {error})") from None


def write_json(path: Path, value: Any, durable: bool = True) -> None:
    """Write a value as JSON, whole or not at all; what JSON lacks is written as text."""
    write(path, lambda f: f.write(_json(value)), durable)


def write_secret(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all, that only its owner can read; its folder, too, if it makes it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write(path, lambda f: f.write(content), mode=0o600)


def sync(path: Path) -> None:
    """Wait until a file that was written, or the names of a folder, are on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, default=as_text) + "\n").encode()


def finite(value: Any) -> Any:
    """The value with null for numbers that are not finite, which JSON lacks."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV; the columns are all keys in the order of their first appearance."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write(path, lambda file: file.write(text.getvalue().encode()))


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
    require(isinstance(value, dict), f"{path} must hold a JSON object")
    return dict(value)


def metrics_line(path: Path, number: int, text: bytes) -> dict[str, Any]:
    """A line of metrics, checked: it is a JSON object that says which round it is."""
    try:
        line = json.loads(text)
        ok = isinstance(line, dict) and line["round"] == number and checks.sound_line(line)
    except (ValueError, KeyError, RecursionError):
        ok = False
    require(ok, f"{path} is damaged in line {number}")
    if "spared" in line:  # of older runs
        line["not_selected"] = line.pop("spared")
    return dict(line)


def fingerprint(params: Array) -> str:
    """A short name for exact parameters, to compare runs at a glance."""
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(params, np.float32))
    return hashlib.sha256(buffer.getvalue()).hexdigest()[:16]
