import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from fedstale.core import BadInput
from fedstale.data.files import Official, Remote, read, roots

CONTENT = {"one.bin": b"first " * 1000, "two.bin": b"second " * 1000}


def packed(contents: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"inner/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def officials(*urls: str, archive: bytes = b"") -> list[Official]:
    remote = Remote("set.tar.gz", hashlib.md5(archive).hexdigest(), urls)
    return [
        Official(name, len(content), hashlib.md5(content).hexdigest(), ("set", "SET/raw"), remote)
        for name, content in CONTENT.items()
    ]


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The folder that FEDSTALE_DATA names; the cache is beside it."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("FEDSTALE_DATA", str(folder))
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "cache" / name)
    return folder


def test_the_search_goes_from_the_named_folder_to_the_cache(data, tmp_path, monkeypatch):
    cache = tmp_path / "cache" / "fedstale"
    assert roots() == [data, cache]
    monkeypatch.delenv("FEDSTALE_DATA")
    assert roots() == [cache]
    monkeypatch.setenv("FEDSTALE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(BadInput, match=r"FEDSTALE_DATA must name a folder, got .*nowhere"):
        roots()


@pytest.mark.parametrize("folder", ["set", "SET/raw"])
@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_plain_and_gz_files_are_found(data, tmp_path, folder, gz, cached):
    root = tmp_path / "cache" / "fedstale" if cached else data
    for name, content in CONTENT.items():
        put(root / folder / (name + ".gz" * gz), gzip.compress(content) if gz else content)
    assert read(officials()) == list(CONTENT.values())


def test_an_archive_is_read_in_place_and_once(data, monkeypatch):
    put(data / "set.tar.gz", packed(CONTENT))
    opened, real = [], tarfile.open
    monkeypatch.setattr("tarfile.open", lambda *args: opened.append(args) or real(*args))
    assert read(officials()) == list(CONTENT.values())
    assert len(opened) == 1
    assert [path.name for path in data.rglob("*")] == ["set.tar.gz"]


def test_the_named_folder_comes_before_the_cache(data, tmp_path):
    put(tmp_path / "cache/fedstale/set.tar.gz", b"broken")
    put(data / "set.tar.gz", packed(CONTENT))
    assert read(officials()) == list(CONTENT.values())


def test_what_is_missing_is_downloaded_once_into_the_cache(data, tmp_path, mirror):
    archive = packed(CONTENT)
    url, server = mirror((200, archive, len(archive)))
    told = []
    for _ in range(2):
        contents = read(officials(url, archive=archive), lambda *step: told.append(step))
        assert contents == list(CONTENT.values())
    assert server.asked == 1
    assert told[-1] == ("set.tar.gz", len(archive), len(archive))
    assert (tmp_path / "cache/fedstale/set.tar.gz").read_bytes() == archive
    assert list(data.iterdir()) == []


ONE = CONTENT["one.bin"]
BROKEN = {
    "cut plain file": ("set/one.bin", ONE[:-1], f"{len(ONE)} bytes .* got {len(ONE) - 1} bytes"),
    "too long": ("set/one.bin", ONE + b"!", "got more"),
    "other content": ("set/one.bin", ONE[::-1], f"got md5 {hashlib.md5(ONE[::-1]).hexdigest()}"),
    "cut gz": ("set/one.bin.gz", gzip.compress(ONE)[:-9], "cannot be read"),
    "no gz": ("set/one.bin.gz", ONE, "cannot be read"),
    "damaged gz": ("set/one.bin.gz", gzip.compress(ONE)[:10] + b"\xff" * 40, "cannot be read"),
    "empty gz": ("set/one.bin.gz", b"", "got 0 bytes"),
    "cut archive": ("set.tar.gz", packed(CONTENT)[:80], "cannot be read|nothing by that name"),
    "no archive": ("set.tar.gz", ONE, "cannot be read"),
    "archive without it": ("set.tar.gz", packed({"two.bin": b"x"}), r"one\.bin.* nothing by that name"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_named_with_what_to_do(data, case):
    where, content, found = BROKEN[case]
    path = put(data / where, content)
    with pytest.raises(BadInput, match=found) as caught:
        read(officials()[:1])
    text = str(caught.value)
    assert text.startswith(str(path))
    assert text.endswith("delete it or fetch it again")
    assert "\n" not in text
