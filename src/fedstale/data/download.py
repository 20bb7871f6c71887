"""Fetch a published file: over its mirrors, checked, and never half written."""

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from fedstale.core import BadInput

Progress = Callable[[str, int, int], None]  # name, bytes so far, bytes in all (0 = not announced)


class Remote(NamedTuple):
    """A file as servers offer it."""

    path: str  # where it is kept under a data folder
    md5: str  # of the file as sent
    urls: tuple[str, ...]  # tried in this order


def quiet(name: str, done: int, total: int) -> None:
    """Report nothing: the library never prints."""


def download(
    remote: Remote,
    root: Path,
    *,
    progress: Progress = quiet,
    tries: int = 3,
    wait: float = 1.0,
    timeout: float = 15.0,
) -> Path:
    """Fetch `remote` into `root`; go round the mirrors `tries` times, doubling `wait` (s) each time."""
    faults: dict[str, _Fault] = {}
    for attempt in range(tries):
        if attempt:
            time.sleep(wait * 2 ** (attempt - 1))
        for url in [u for u in remote.urls if u not in faults or not faults[u].final]:
            try:
                return _save(url, remote, root / remote.path, progress, timeout)
            except _Fault as fault:
                faults[url] = fault
        if all(fault.final for fault in faults.values()):
            break
    tried = "; ".join(f"{url} {fault}" for url, fault in faults.items())
    by_hand = f"put it by hand at {remote.path} in a folder of yours and set FEDSTALE_DATA to that folder"
    raise BadInput(f"could not download {remote.path} ({tried}): {by_hand}")


class _Fault(Exception):
    """What went wrong with one mirror; a final fault is not worth another try."""

    def __init__(self, text: str, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


def _save(url: str, remote: Remote, target: Path, progress: Progress, timeout: float) -> Path:
    """Stream to a file of our own, check it, and only then give it its name."""
    digest, done, total = hashlib.md5(usedforsecurity=False), 0, 0
    try:
        with _part_of(target) as part:
            for chunk, total in _chunks(url, timeout):
                part.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress(target.name, done, total)
            if done < total:
                raise _Fault(f"sent {done} of {total} bytes")
            if digest.hexdigest() != remote.md5:
                raise _Fault(f"sent a file with md5 {digest.hexdigest()}, not {remote.md5}")
    except OSError as error:
        raise BadInput(f"cannot write {target}: {error}") from error
    return target


@contextlib.contextmanager
def _part_of(target: Path) -> Iterator[IO[bytes]]:
    """A temporary file, one for each process, that takes the name of `target` in one step if all went well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with open(descriptor, "wb") as part:
            yield part
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)  # which is gone if it took its name


def _chunks(url: str, timeout: float) -> Iterator[tuple[bytes, int]]:
    """Pieces of the body, each with the announced total; what the network does wrong is a fault."""
    import http.client  # slow to load, and most never download
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            total = int(response.headers.get("Content-Length") or 0)
            while chunk := response.read(1 << 18):
                yield chunk, total
    except urllib.error.HTTPError as error:
        error.close()
        raise _Fault(f"answered {error.code} {error.reason}", final=error.code in (403, 404, 410)) from error
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise _Fault(f"could not be reached: {reason}") from error
