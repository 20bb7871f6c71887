"""Damaged files of finished runs are named; `python -m tools.runs_damage` tries more of them."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedstale.core import BadInput, Clients
from fedstale.lab.runs import checks
from fedstale.lab.runs.store import RunFolder, digest, fingerprint, write_json
from tools.runs_damage import cases


@pytest.mark.parametrize(
    "old", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["with checksums", "of an earlier version"]
)
def test_no_damage_ends_in_an_exception_or_is_used_in_silence(
    tmp_path: Path, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    found = dict(cases(tmp_path, 3, 11, old))
    allowed = {"same", "named", "silent"} if old else {"same", "named"}
    assert {*found.values()} <= allowed, {what: v for what, v in found.items() if v not in allowed}
    assert "named" in found.values()


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    config = {"label": "fedavg", "seed": 1}
    folder = RunFolder(tmp_path / f"fedavg-s1-{digest(config)}")
    folder.path.mkdir()
    write_json(folder.path / "config.json", config | {"tuned": {"algorithm": "fedavg"}})
    folder.save_params(np.arange(5, dtype=np.float32), np.ones(2))
    folder.save_client_states(Clients({0: np.ones(2)}))
    write_json(folder.path / "clients.json", {"weight": [0.5, 0.5]})
    folder.save_result({"rounds": 1, "fingerprint": fingerprint(folder.params())})
    return folder


@pytest.mark.parametrize(
    "name", ["config.json", "params.npy", "buffers.npy", "states.npz", "clients.json", "result.json"]
)
@pytest.mark.parametrize("how", ["longer", "as long", "deleted"])
def test_a_file_that_is_not_as_it_was_written_is_named(run: RunFolder, name: str, how: str) -> None:
    assert run.damage == ""
    path = run.path / name
    text, modified = path.read_bytes(), path.stat().st_mtime_ns
    path.unlink() if how == "deleted" else path.write_bytes(text + b" " if how == "longer" else text[:-1] + b" ")
    if how == "as long":
        os.utime(path, ns=(modified, modified + 1))  # clocks may stand still between two writes
    assert run.damage.startswith(f"{path} is damaged")
    if name == "result.json" and how == "deleted":
        assert not run.finished
        return
    read = {"config.json": run.config, "params.npy": run.params, "buffers.npy": run.buffers}
    read |= {"states.npz": run.client_states}
    with pytest.raises(BadInput, match=name):
        (read | {"clients.json": run.clients, "result.json": run.result})[name]()


def test_runs_of_an_earlier_version_are_read_and_compared_with_what_they_have(run: RunFolder) -> None:
    (run.path / checks.FILE).unlink()
    assert (run.damage, run.finished, len(run.params())) == ("", True, 5)
    np.save(run.path / "params.npy", np.zeros(5, np.float32))
    with pytest.raises(BadInput, match="has not the result's fingerprint"):
        run.params()
    write_json(run.path / "config.json", {"label": "fedavg", "seed": 2})
    with pytest.raises(BadInput, match="the name of its folder was made of another configuration"):
        run.config()


def test_a_file_is_read_once_for_each_version_of_it(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run.damage == ""
    monkeypatch.setattr("hashlib.file_digest", None)
    assert run.damage == ""


@pytest.mark.parametrize("values", [{"weight": 1}, {"weight": ["x"]}, {"weight": [1], "accuracy": [1, 2]}])
def test_clients_of_another_shape_are_refused(run: RunFolder, values: object) -> None:
    (run.path / checks.FILE).unlink()
    write_json(run.path / "clients.json", values)
    with pytest.raises(BadInput, match="one number for each client"):
        run.clients()
