"""What is on disk can be trusted: whole files or none, and nothing foreign is unpickled."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.runs import store


class Inner(NamedTuple):
    array: Any
    count: int


@dataclass
class Outer:
    inner: Inner
    table: dict[str, Any]
    items: list[Any]
    nothing: None = None


def sample(fill: float) -> Outer:
    inner = Inner(np.full((2, 3), fill, np.float32), int(fill))
    return Outer(inner, {"a": np.arange(3), "b": fill}, [np.float64(fill), True, "word", (1, np.zeros(0))])


def test_a_state_comes_back_with_its_types_and_bits(tmp_path: Path) -> None:
    folder = store.RunFolder(tmp_path)
    folder.save_checkpoint(sample(7.5))
    found = folder.load_checkpoint(sample(0.0))
    assert type(found) is Outer
    assert type(found.inner) is Inner
    np.testing.assert_array_equal(found.inner.array, np.full((2, 3), 7.5, np.float32))
    assert found.inner.array.dtype == np.float32
    assert found.inner.count == 7
    assert found.table["b"] == 7.5
    np.testing.assert_array_equal(found.table["a"], np.arange(3))
    assert found.items[:3] == [7.5, True, "word"]
    assert found.items[3][0] == 1
    assert found.nothing is None


def test_a_state_that_is_not_plain_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="a state holds arrays, numbers"):
        store.RunFolder(tmp_path).save_checkpoint({"generator": np.random.default_rng(0)})
    assert not list(tmp_path.iterdir())


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "checkpoint.npz", structure=np.array([{"evil": 1}], dtype=object))
    with pytest.raises(BadInput, match="cannot be read"):
        store.RunFolder(tmp_path).load_checkpoint(sample(0.0))


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


def test_names_go_by_content() -> None:
    a = store.run_name("FedStale β=0.5", 1, {"rounds": 10, "local": {"lr": 0.1, "steps": 5}})
    assert a == store.run_name("FedStale β=0.5", 1, {"local": {"steps": 5, "lr": 0.1}, "rounds": 10})
    assert a != store.run_name("FedStale β=0.5", 1, {"rounds": 11, "local": {"lr": 0.1, "steps": 5}})
    assert a.startswith("fedstale-0.5-s1-")


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"round":1}\n{"round":2}\n{"rou')
    folder = store.RunFolder(tmp_path)
    assert [line["round"] for line in folder.metrics()] == [1, 2]
    folder.open_metrics(1).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"round":1}\n'
    with pytest.raises(BadInput, match="shorter than its checkpoint"):
        folder.open_metrics(5)


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
