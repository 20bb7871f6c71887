"""What is on disk can be trusted: whole files or none, and nothing foreign is unpickled."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstale.core import BadInput, Checkpoint
from fedstale.lab.runs import store

STATE = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": [1.5, "word", None]}


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    folder = store.RunFolder(tmp_path)
    folder.save_checkpoint(STATE)
    found = folder.load_checkpoint(STATE)
    np.testing.assert_array_equal(found["a"], STATE["a"])
    assert found["b"] == STATE["b"]


def test_no_flipped_bit_of_a_checkpoint_goes_uncaught(tmp_path: Path) -> None:
    """It is refused with a sentence, or it was in a byte that means nothing (a date) and all numbers are right."""
    folder, rng = store.RunFolder(tmp_path), np.random.default_rng(1)
    folder.save_checkpoint(STATE)
    path = tmp_path / "checkpoint.npz"
    whole, harmless = path.read_bytes(), 0
    for bit in rng.choice(8 * len(whole), 1000, replace=False).tolist():
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with contextlib.suppress(BadInput):
            found = folder.load_checkpoint(STATE)
            harmless += 1
            np.testing.assert_array_equal(found["a"], STATE["a"])
            assert found["b"] == STATE["b"]
    assert harmless < 500


@pytest.mark.parametrize("content", [b"", b"PK", b"\x00" * 100], ids=["empty", "begun", "zeros"])
def test_what_is_no_checkpoint_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoint.npz").write_bytes(content)
    with pytest.raises(BadInput, match=r"checkpoint\.npz cannot be read"):
        store.RunFolder(tmp_path).load_checkpoint(STATE)
    (tmp_path / "params.npy").write_bytes(content)
    with pytest.raises(BadInput, match=r"params\.npy cannot be read"):
        store.RunFolder(tmp_path).params()


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "checkpoint.npz", structure=np.array([{"evil": 1}], dtype=object))
    with pytest.raises(BadInput, match="cannot be read"):
        store.RunFolder(tmp_path).load_checkpoint(STATE)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    store.write(path, lambda f: f.write(b"old"))

    def broken(f: Any) -> None:
        f.write(b"new, but")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        store.write(path, broken)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_old_file_is_there_until_the_new_one_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "file", []
    store.write(path, lambda f: f.write(b"old"))
    monkeypatch.setattr(os, "fsync", lambda fd: seen.append((path.read_bytes(), os.fstat(fd).st_size)))
    store.write(path, lambda f: seen.append((path.read_bytes(), f.write(b"brand new"))))
    assert seen == [(b"old", 9), (b"old", 9)]  # while it is written, and when all of it is on the disk
    assert path.read_bytes() == b"brand new"


def test_a_kill_while_writing_leaves_the_old_file_and_the_next_owner_sweeps(tmp_path: Path) -> None:
    folder = store.RunFolder(tmp_path / "run")
    with folder.locked():
        folder.save_checkpoint(STATE)
    before = {p.name: p.read_bytes() for p in folder.path.iterdir()}
    code = (
        "import os, sys; from pathlib import Path; from fedstale.lab.runs import store;"
        "store.write(Path(sys.argv[1]), lambda f: (f.write(b'half'), f.flush(), os._exit(9)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder.path / "checkpoint.npz")])
    assert done.returncode == 9
    assert len(list(folder.path.iterdir())) == len(before) + 1
    assert (folder.path / "checkpoint.npz").read_bytes() == before["checkpoint.npz"]
    (folder.path / ".hidden.txt").write_text("not ours")
    with folder.locked():
        assert {p.name for p in folder.path.iterdir()} == {*before, ".hidden.txt"}


def test_clearing_forgets_everything_but_the_configuration(tmp_path: Path) -> None:
    folder = store.RunFolder(tmp_path)
    (tmp_path / "rows").mkdir()
    names = (
        "config.json",
        "result.json",
        "clients.json",
        "params.npy",
        "buffers.npy",
        "states.npz",
        "last.npz",
        "model.json",
        "diverged.json",
        "checksums.json",
        "checkpoint.npz",
        "metrics.jsonl",
        "status.json",
    )
    for name in (*names, "memory-a.rows", "rows/memory-b.rows"):
        (tmp_path / name).write_text("{}")
    folder.clear()
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["config.json"]


def test_final_buffers_are_kept_exactly_and_missing_ones_are_none(tmp_path: Path) -> None:
    folder, buffers = store.RunFolder(tmp_path), np.array([1 / 3, 2.0**53])
    folder.save_params(np.ones(2, np.float32))
    assert folder.buffers() is None
    folder.save_params(np.ones(2, np.float32), buffers)
    np.testing.assert_array_equal(folder.buffers(), buffers)  # type: ignore[arg-type]


def test_a_checkpoint_from_before_there_were_buffers_is_read(tmp_path: Path) -> None:
    folder = store.RunFolder(tmp_path)
    now = Checkpoint(3, np.ones(2, np.float32), (), None, None, None)
    folder.save_checkpoint(now[:6])
    assert folder.load_checkpoint(now)._replace(params=now.params) == now
    whole = now._replace(buffers=np.array([0.5]))
    folder.save_checkpoint(whole)
    np.testing.assert_array_equal(folder.load_checkpoint(now).buffers, [0.5])


def test_names_go_by_content() -> None:
    a = store.run_name("FedStale β=0.5", 1, {"rounds": 10, "local": {"lr": 0.1, "steps": 5}})
    assert a == store.run_name("FedStale β=0.5", 1, {"local": {"steps": 5, "lr": 0.1}, "rounds": 10})
    assert a != store.run_name("FedStale β=0.5", 1, {"rounds": 11, "local": {"lr": 0.1, "steps": 5}})
    assert a.startswith("fedstale-0.5-s1-")


def test_a_fingerprint_is_of_every_bit_and_the_same_in_every_version() -> None:
    params = np.array([1.0, 1 / 3, -2.5e-8], np.float32)
    assert store.fingerprint(params) == "77e29ff3182e297e"
    assert store.fingerprint(np.nextafter(params, np.float32(2))) != store.fingerprint(params)


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"round":1}\n{"round":2}\n{"rou')
    folder = store.RunFolder(tmp_path)
    assert [line["round"] for line in folder.metrics()] == [1, 2]
    folder.open_metrics(1).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"round":1}\n'
    with pytest.raises(BadInput, match="shorter than its checkpoint"):
        folder.open_metrics(5)


@pytest.mark.parametrize(
    "line",
    [
        *(b"{oops", b'{"round":7}', b"[]", b"\xff\xfe", b'{"step":1}', b"", b"[" * 100_000),
        *(
            b'{"round":2,"clipped":"many"}',
            b'{"round":2,"heard":[-1]}',
            b'{"round":2,"idle":[3]}',
            b'{"round":2,"ages":[-1]}',
        ),
    ],
    ids=range(11),
)
def test_a_damaged_line_of_metrics_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"round":1}\n' + line + b'\n{"round":3}\n')
    folder = store.RunFolder(tmp_path)
    for read in (folder.metrics, lambda: folder.open_metrics(3)):
        with pytest.raises(BadInput, match=r"metrics\.jsonl is damaged in line 2"):
            read()
    folder.open_metrics(1).close()  # what comes after the checkpoint does not matter
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"round":1}\n'


def test_the_old_name_of_clients_that_were_not_selected_is_read(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"round":1,"spared":[2]}\n{"round":2,"not_selected":[1]}\n')
    assert [line["not_selected"] for line in store.RunFolder(tmp_path).metrics()] == [[2], [1]]


def test_a_run_with_a_damaged_result_is_not_finished(tmp_path: Path) -> None:
    folder = store.RunFolder(tmp_path)
    store.write_json(tmp_path / "result.json", {"rounds": 3})
    assert folder.finished
    for text in ("", '{"rounds": 3', "[]", "\x00"):
        (tmp_path / "result.json").write_text(text)
        assert not folder.finished


def test_a_run_that_diverged_is_tried_again_by_other_code(tmp_path: Path) -> None:
    store.write_json(tmp_path / "diverged.json", {"why": "round 3: the step is not finite", "code": "0.2.0 (abc)"})
    folder = store.RunFolder(tmp_path)
    assert folder.diverged("0.2.0 (abc)") == "round 3: the step is not finite"
    assert folder.diverged("0.2.0 (abd)") is None


def test_two_processes_do_not_compute_the_same_run(tmp_path: Path) -> None:
    folder = store.RunFolder(tmp_path / "run")
    with folder.locked(), pytest.raises(BadInput, match="another process"), store.RunFolder(folder.path).locked():
        pass
    with folder.locked():
        pass


def test_folders_of_others_and_of_other_versions_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="not a fedstale store"):
        store.open_store(tmp_path)
    with pytest.raises(BadInput, match="not a fedstale store"):
        store.open_store(tmp_path / "file")
    store.write_json(tmp_path / store.MARKER, {"format": 99})
    with pytest.raises(BadInput, match="format 99"):
        store.open_store(tmp_path)


def test_a_folder_without_runs_is_refused_with_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"there is no folder .*; `fedstale run` stores its runs there"):
        store.runs(tmp_path / "none")
    with pytest.raises(BadInput, match=r"is not a fedstale store: it has no fedstale-store\.json"):
        store.runs(tmp_path)


def test_who_reads_a_file_while_it_is_replaced_has_the_whole_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    store.write(path, lambda f: f.write(b"the old one"))
    with path.open("rb") as opened:
        store.write(path, lambda f: f.write(b"new"))
        assert opened.read() == b"the old one"
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_result_is_the_first_that_goes_and_the_last_that_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill in between leaves an unfinished run, never one that seems finished without its files."""
    folder, deleted, written = store.RunFolder(tmp_path), list[str](), list[str]()
    unlink, replace = Path.unlink, Path.replace
    monkeypatch.setattr(Path, "unlink", lambda p, **how: (deleted.append(p.name), unlink(p, **how))[1])
    monkeypatch.setattr(Path, "replace", lambda p, to: (written.append(to.name), replace(p, to))[1])
    folder.save_params(np.ones(2, np.float32))
    folder.save_result({"rounds": 1})
    assert written == ["params.npy", "checksums.json", "result.json"]
    folder.clear()
    assert deleted[0] == "result.json"
