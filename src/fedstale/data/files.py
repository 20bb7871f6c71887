"""The official files of a dataset: where they are looked for, and their checked content."""

import gzip
import hashlib
import os
import tarfile
import tomllib
import zlib
from collections.abc import Sequence
from importlib.resources import files as package_files
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import platformdirs

from fedstale.core import BadInput, require
from fedstale.data.download import Progress, Remote, download, quiet


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
