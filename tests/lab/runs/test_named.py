"""What the words of a user name: a run, the runs of a folder, a store."""

from pathlib import Path

import pytest

from fedstale.core import BadInput
from fedstale.lab.runs import named


def test_the_beginning_of_several_runs_is_not_called_unknown(tmp_path: Path) -> None:
    (tmp_path / "fedstale-store.json").write_text("{}")
    for name in ("fedavg-s1-a", "fedavg-s2-b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    with pytest.raises(BadInput, match="the run 'fedavg' must be one, got the beginning of 2: fedavg-s1-a"):
        named.one("fedavg", tmp_path)


def test_an_empty_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "fedstale-store.json").write_text("{}")
    with pytest.raises(
        BadInput, match=f"there is no run 'fedavg': {tmp_path} has no runs; --out names another folder"
    ):
        named.one("fedavg", tmp_path)


def test_a_folder_of_runs_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "fedstale-store.json").write_text("{}")
    with pytest.raises(
        BadInput, match=r"^\S+ is a folder of runs: name one of them; `fedstale list runs --out \S+` lists"
    ):
        named.one(str(tmp_path), Path("runs"))


def test_a_folder_that_is_no_run_is_named_unless_a_run_begins_like_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fedavg").mkdir()
    (tmp_path / "fedavg" / "trace.csv").touch()
    with pytest.raises(BadInput, match=r"^fedavg is not the folder of a run: .* is fedavg/trace\.csv"):
        named.one("fedavg")
    run = tmp_path / "runs" / "fedavg-s1-a"
    run.mkdir(parents=True)
    (run / "config.json").write_text("{}")
    (tmp_path / "runs" / "fedstale-store.json").write_text("{}")
    assert named.one("fedavg").path == Path("runs/fedavg-s1-a")
    assert [r.path for r in named.find(Path("fedavg-s1-a")).runs] == [Path("runs/fedavg-s1-a")]
