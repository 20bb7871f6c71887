"""Copy a federation while its server runs: the files that one manifest names, each checked, and the settings.

The server never changes a file of its state: it writes new ones, and removes the old ones after a commit. While a
copy is made it removes nothing, so the files of the manifest that the copy began with stay until it is done.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedstale.core import Checkpoint, require
from fedstale.core.system import lock
from fedstale.flower.federation.state import manifest
from fedstale.flower.federation.state.server_state import ServerState
from fedstale.lab.runs.models import LAYOUT, Arrays, named
from fedstale.lab.runs.store import read_tree

RUNNING = ("state", "logs", "pids", "flwr", "homes", "link.sqlite*", ".*")  # of the processes: not copied


def copy_federation(source: Path, target: Path) -> int:
    """Copy a federation to a new folder that only the owner can read; returns the round that it is at.

    Backing up and restoring are both this. The target appears when it is whole: a kill leaves a hidden folder.
    """
    known = (source / "federation.toml").is_file()
    require(known, f"{source} is not a federation or a backup of one: it has no federation.toml")
    free = not target.exists() or (target.is_dir() and not any(target.iterdir()))
    require(free, f"{target} must be a new or an empty folder, got one with files in it")
    apart = source.resolve() not in (target.resolve(), *target.resolve().parents)
    require(apart, f"{target} must be outside {source}")
    made = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        t = _copy_state(source / "state", made / "state")
        running, top = shutil.ignore_patterns(*RUNNING), str(source)  # an app may have folders of these names
        shutil.copytree(source, made, ignore=lambda f, n: running(f, n) if f == top else (), dirs_exist_ok=True)
        for path in (made, *made.rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)
        made.replace(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return t


def _copy_state(source: Path, target: Path) -> int:
    """Copy the last commit of a state; returns its round, 0 if there is none."""
    target.mkdir(mode=0o700, parents=True)
    if manifest.read_manifest(source) is None:
        return 0
    with unswept(source):
        m: dict[str, Any] | None = manifest.read_manifest(source)
        assert m, "there was a manifest, and no server removes it"
        files = [m["checkpoint"], *(file for some in m["rows"].values() for file in some.values())]
        for name, expected in files:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            manifest.verified(source, name, expected, copy=target / name)
        lines = manifest.metric_lines(source, m)
    (target / "metrics.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    manifest.write_manifest(target, m)
    return int(m["t"])


@contextmanager
def unswept(state: Path, shared: bool = True) -> Iterator[bool]:
    """Keep the server from removing files of its state; it goes on committing rounds.

    The server itself takes this for itself alone, and removes files only if nobody else has it.
    """
    folder = os.open(state, os.O_RDONLY)
    try:
        yield lock(folder, shared=shared, wait=shared)
    finally:
        os.close(folder)


def read_model(folder: Path) -> tuple[int, Arrays]:
    """The last committed round of the federation in a folder, and the model's arrays after it, by name."""
    state = folder / "state"
    none = f"{folder} has no committed round yet; `fedstale federation run {folder}` trains"
    require(manifest.read_manifest(state) is not None, none)
    unnamed = f"{folder} has no {LAYOUT}, which names the model's parameters"
    require((folder / LAYOUT).exists(), f"{unnamed}: give server_app its layout, or make the start with of_module")
    with unswept(state):
        committed = manifest.read_manifest(state) or {}
        whole = read_tree(manifest.verified(state, *committed["checkpoint"]), None)
    tree = whole[ServerState._fields.index("checkpoint")]
    params, buffers = (tree[Checkpoint._fields.index(field)] for field in ("params", "buffers"))
    again = f"{manifest.RESTORE}, or let the server write it again when it starts"
    layout = manifest.read_sealed(folder / LAYOUT, again)
    return int(committed["t"]), named(layout, params, buffers)
