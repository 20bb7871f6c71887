import hashlib
import socket
import threading
from functools import partial
from pathlib import Path

import pytest

from fedstale.core import BadInput
from fedstale.data.files import Remote
from fedstale.data.files import download as impatient

download = partial(impatient, timeout=600.0)  # the mirror is a thread of this process, which may be busy
BODY = bytes(range(256)) * 4000  # several chunks
WHOLE = (200, BODY, len(BODY))
OTHER = (200, BODY[::-1], len(BODY))
CUT = (200, BODY[:1000], len(BODY))
MISSING = (404, b"", 0)
BUSY = (503, b"", 0)


def remote(*urls: str) -> Remote:
    return Remote("mnist/images.gz", hashlib.md5(BODY).hexdigest(), urls)


def refusal(remote: Remote, root: Path, tries: int = 2) -> str:
    with pytest.raises(BadInput) as caught:
        download(remote, root, tries=tries, wait=0.001)
    text = str(caught.value)
    assert "FEDSTALE_DATA" in text
    assert "mnist/images.gz" in text
    assert "\n" not in text
    assert not [path for path in root.rglob("*") if path.is_file()]
    return text


def test_a_file_arrives_whole_and_progress_is_told(mirror, tmp_path):
    url, _ = mirror(WHOLE)
    told = []
    path = download(remote(url), tmp_path, progress=lambda *step: told.append(step))
    assert path == tmp_path / "mnist/images.gz"
    assert path.read_bytes() == BODY
    assert [step[1] for step in told] == sorted(step[1] for step in told)
    assert len(told) > 1
    assert told[-1] == ("images.gz", len(BODY), len(BODY))
    assert [p.name for p in path.parent.iterdir()] == ["images.gz"]


def test_a_truncated_body_is_refused(mirror, tmp_path):
    url, server = mirror(CUT)
    assert f"{url} sent 1000 of {len(BODY)} bytes" in refusal(remote(url), tmp_path)
    assert server.asked == 2


def test_a_wrong_checksum_is_refused(mirror, tmp_path):
    url, server = mirror(OTHER)
    text = refusal(remote(url), tmp_path)
    assert hashlib.md5(BODY[::-1]).hexdigest() in text
    assert hashlib.md5(BODY).hexdigest() in text
    assert server.asked == 2


def test_a_missing_file_is_asked_for_once(mirror, tmp_path):
    url, server = mirror(MISSING)
    assert "404" in refusal(remote(url), tmp_path)
    assert server.asked == 1


def test_no_network_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, never listening: connections are refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file"
        assert f"{url} could not be reached" in refusal(remote(url), tmp_path)


@pytest.mark.parametrize("fault", [CUT, OTHER, BUSY])
def test_success_after_one_failure(mirror, tmp_path, fault):
    url, server = mirror(fault, WHOLE)
    assert download(remote(url), tmp_path, wait=0.001).read_bytes() == BODY
    assert server.asked == 2


def test_the_next_mirror_is_tried_and_every_fault_is_told(mirror, tmp_path):
    gone, first = mirror(MISSING)
    busy, second = mirror(BUSY)
    good, _ = mirror(WHOLE)
    text = refusal(remote(gone, busy), tmp_path, tries=3)
    assert f"{gone} answered 404" in text
    assert f"{busy} answered 503" in text
    assert (first.asked, second.asked) == (1, 3)
    assert download(remote(gone, good), tmp_path, tries=1).read_bytes() == BODY


def test_the_wait_doubles(mirror, tmp_path, monkeypatch):
    url, _ = mirror(BUSY)
    waits: list[float] = []
    monkeypatch.setattr("fedstale.data.files.time.sleep", waits.append)
    with pytest.raises(BadInput):
        download(remote(url), tmp_path, tries=4, wait=0.5)
    assert waits == [0.5, 1.0, 2.0]


def test_two_downloads_at_once_do_not_mix(mirror, tmp_path):
    both = threading.Barrier(2)

    def slow(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(BODY)))
        handler.end_headers()
        handler.wfile.write(BODY[:500_000])
        both.wait(600)  # both are half way, then both go on
        handler.wfile.write(BODY[500_000:])

    url, _ = mirror(slow)
    got = []
    threads = [threading.Thread(target=lambda: got.append(download(remote(url), tmp_path))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(1200)
    assert [path.read_bytes() == BODY for path in got] == [True, True]
    assert [path.name for path in (tmp_path / "mnist").iterdir()] == ["images.gz"]


def test_a_folder_that_cannot_be_written_is_named(mirror, tmp_path):
    url, _ = mirror(WHOLE)
    (tmp_path / "mnist").write_text("a file where a folder should be")
    with pytest.raises(BadInput, match=r"cannot write .*images\.gz"):
        download(remote(url), tmp_path)
