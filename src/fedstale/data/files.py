"""The official files of a dataset: looked for here or fetched from a mirror, checked, and never half written."""

import contextlib
import gzip
import hashlib
import os
import tarfile
import tempfile
import time
import tomllib
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files as package_files
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import platformdirs

from fedstale.core import BadInput, require

Progress = Callable[[str, int, int], None]  # name, bytes so far, bytes in all (0 = not announced)


class Remote(NamedTuple):
    """A file as servers offer it."""

    path: str  # where it is kept under a data folder
    md5: str  # of the file as sent
    urls: tuple[str, ...]  # tried in this order


class Official(NamedTuple):
    """A file as its authors published it, however it is packed on this machine."""

    name: str
    size: int  # bytes, unpacked
    md5: str  # of the unpacked content: the same for every way to pack it
    folders: tuple[str, ...]  # where it may lie under a data folder
    remote: Remote  # where it can be fetched, packed


def official(*names: str) -> list[Official]:
    """The files of these tables of officials.toml, in their order."""
    tables = tomllib.loads((package_files("fedstale.data") / "officials.toml").read_text())
    found = []
    for table in (tables[name] for name in names):
        for name, size, md5, *own in table["files"]:
            path = table.get("archive", f"{table['folders'][0]}/{name}.gz")
            urls = tuple(mirror + path.rpartition("/")[2] for mirror in table["mirrors"])
            packed = own[0] if own else table["packed"]
            found.append(Official(name, size, md5, tuple(table["folders"]), Remote(path, packed, urls)))
    return found


def roots() -> list[Path]:
    """The data folders in the order of search; downloads go to the last."""
    cache = platformdirs.user_cache_path("fedstale")
    named = os.environ.get("FEDSTALE_DATA")
    if not named:
        return [cache]
    folder = Path(named).expanduser()
    require(folder.is_dir(), f"FEDSTALE_DATA must name a folder, got {named}")
    return [folder, cache]


def quiet(name: str, done: int, total: int) -> None:
    """Report nothing: the library never prints."""


def read(files: Sequence[Official], progress: Progress = quiet) -> list[bytes]:
    """The unpacked, checked content of each file; what is in no data folder is downloaded."""
    folders = roots()
    at: dict[Path, list[Official]] = {}
    for file in files:
        place = find(file, folders) or download(file.remote, folders[-1], progress=progress)
        at.setdefault(place, []).append(file)
    contents: dict[str, bytes] = {}
    for place, held in at.items():  # an archive holds several files and is unpacked once
        contents |= _unpack(place, held)
    return [contents[file.name] for file in files]


def find(file: Official, folders: Sequence[Path]) -> Path | None:
    """The plain file, its .gz, or the archive that holds it: the first there is."""
    for root in folders:
        plain = [root / folder / file.name for folder in file.folders]
        for path in [p.with_name(p.name + end) for p in plain for end in ("", ".gz")]:
            if path.is_file():
                return path
        if (archive := root / file.remote.path).is_file():
            return archive
    return None


def _unpack(place: Path, files: Sequence[Official]) -> dict[str, bytes]:
    try:
        if place.name.endswith(".tar.gz"):
            contents = _members(place, files)
        else:
            with gzip.open(place) if place.suffix == ".gz" else place.open("rb") as opened:
                contents = {files[0].name: opened.read(files[0].size + 1)}  # one more shows a file that is too long
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise BadInput(f"{place} cannot be read ({error}): delete it or fetch it again") from error
    for file in files:
        _check(contents.get(file.name), file, place)
    return contents


def _members(place: Path, files: Sequence[Official]) -> dict[str, bytes]:
    sizes = {file.name: file.size for file in files}
    contents: dict[str, bytes] = {}
    with tarfile.open(place, "r|gz") as archive:
        for member in archive:
            name = PurePosixPath(member.name).name
            if name in sizes and (opened := archive.extractfile(member)):
                contents[name] = opened.read(sizes[name] + 1)
    return contents


def _check(content: bytes | None, file: Official, place: Path) -> None:
    """Refuse what is not the published file, byte for byte: results must mean the same everywhere."""
    if content is None:
        got = "nothing by that name"
    elif len(content) != file.size:
        got = f"{len(content)} bytes" if len(content) < file.size else "more"
    elif (md5 := hashlib.md5(content, usedforsecurity=False).hexdigest()) != file.md5:
        got = f"md5 {md5}"
    else:
        return
    wanted = f"{file.name}, {file.size} bytes with md5 {file.md5}"
    raise BadInput(f"{place} must hold {wanted}, got {got}: delete it or fetch it again")


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
