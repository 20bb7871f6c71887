"""`fedstale show`: one run, readable."""

from pathlib import Path

import pytest

from fedstale.cli import show
from fedstale.core import BadInput
from tests.cli.commands import fedstale


def test_show_is_readable(file: Path, tmp_path: Path) -> None:
    assert fedstale("run", file, "--seeds", "1", "--out", tmp_path / "runs").returncode == 0
    text = fedstale("show", "fedstale", "--out", tmp_path / "runs").stdout
    assert "two-groups(p_min=0.3)" in text
    assert "{" not in text


def test_the_beginning_of_several_runs_is_not_called_unknown(tmp_path: Path) -> None:
    (tmp_path / "fedstale-store.json").write_text("{}")
    for name in ("fedavg-s1-a", "fedavg-s2-b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    with pytest.raises(BadInput, match="the run 'fedavg' must be one, got the beginning of 2: fedavg-s1-a"):
        show.find("fedavg", tmp_path)


def test_an_empty_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "fedstale-store.json").write_text("{}")
    with pytest.raises(
        BadInput, match=f"there is no run 'fedavg': {tmp_path} has no runs; --out names another folder"
    ):
        show.find("fedavg", tmp_path)


def test_a_folder_of_runs_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "fedstale-store.json").write_text("{}")
    with pytest.raises(
        BadInput, match=r"^\S+ is a folder of runs: name one of them; `fedstale list runs --out \S+` lists"
    ):
        show.find(str(tmp_path), Path("runs"))
