"""Stopping and resuming runs from the page: which commands are started, and what is refused."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fedstale.core import BadInput
from fedstale.lab.runs.store import write_json
from fedstale.view.live import control
from fedstale.view.live.control import LOG, Control
from fedstale.view.live.index import Index, Row
from tests.view.live.stores import computed, unfinish


class Started:
    """Stands for a process; it ends when it is told to."""

    def __init__(self, words: list[str], **how: Any) -> None:
        self.words, self.how, self.code = words, how, None

    def poll(self) -> int | None:
        return self.code


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    """Two interrupted runs and one that is finished, of one command."""
    planned = computed(tmp_path / "runs", seeds=[1])
    for p in planned[:2]:
        unfinish(p.folder, 5)
    index = Index([tmp_path / "runs"])
    index.scan()
    return index.all()


def said_of(rows: list[Row], **changes: Any) -> None:
    for row in rows:
        write_json(row.folder.path / "environment.json", row.folder.environment() | changes)


def test_the_command_is_started_once_where_it_was_started_before(
    rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control.subprocess, "Popen", Started)
    said_of(rows, command="fedstale run 'my file.toml' -o runs", folder=str(tmp_path))
    page = Control()
    assert page.resume(rows) == "resumed: fedstale run 'my file.toml' -o runs"
    (started,) = page.started.values()
    assert isinstance(started, Started)
    assert started.words[1:] == ["-P", "-m", "fedstale", "run", "my file.toml", "-o", "runs", "--resume"]
    assert (started.words[0], started.how["cwd"]) == (sys.executable, str(tmp_path))
    with pytest.raises(BadInput, match="is being resumed already"):
        page.resume(rows)
    assert page.trouble(rows) == []
    started.code = 2
    (tmp_path / "runs" / LOG).write_text("…\nfedstale: there is no such file\n\n")
    (said,) = page.trouble(rows)
    assert said.endswith("--resume ended: fedstale: there is no such file")
    page.resume(rows)  # it is over: once more


@pytest.mark.parametrize("command", [
    "", "rm -rf /", "fedstale", "fedstale ui", "sh -c 'fedstale run x'", "fedstale run 'x", "/bin/fedstale run x",
])  # fmt: skip
def test_no_other_command_is_started(
    rows: list[Row], tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control.subprocess, "Popen", lambda *_, **__: pytest.fail("it was started"))
    said_of(rows, command=command, folder=str(tmp_path))
    with pytest.raises(BadInput, match=r"only `fedstale run`, .* can be resumed here"):
        Control().resume(rows)


def test_runs_that_another_user_has_written_are_not_resumed(
    rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control.subprocess, "Popen", lambda *_, **__: pytest.fail("it was started"))
    said_of(rows, command="fedstale run a.toml -o runs", folder="/their/place")
    monkeypatch.setattr(control.os, "getuid", lambda: 12345)
    sentence = "written by another user.* run `fedstale run a.toml -o runs --resume` in /their/place yourself"
    with pytest.raises(BadInput, match=sentence):
        Control().resume(rows)


@pytest.mark.parametrize("folder", ["", "/nowhere/at/all"])
def test_a_folder_that_is_gone_is_a_sentence(rows: list[Row], folder: str) -> None:
    said_of(rows, folder=folder)
    with pytest.raises(BadInput, match="is not known or not there any more"):
        Control().resume(rows)


def test_only_interrupted_runs_are_resumed_and_only_running_ones_stopped(rows: list[Row]) -> None:
    with pytest.raises(BadInput, match="no interrupted run"):
        Control().resume([row for row in rows if row.state == "finished"])
    with pytest.raises(BadInput, match="no running run"):
        Control().stop(rows)
    running = [row._replace(state="running") for row in rows[:1]]
    Control().stop([*running, *rows[1:]])
    assert [row.folder.stop_asked for row in rows] == [True, False, False]


def test_where_a_run_was_started_is_recorded(rows: list[Row]) -> None:
    where = json.loads((rows[0].folder.path / "environment.json").read_text())
    assert where["folder"] == str(Path.cwd())


def test_a_token_is_asked_for_in_full() -> None:
    page = Control()
    assert page.may(page.token)
    assert not any(map(page.may, ("", page.token[:-1], page.token + "x", "ü")))
    assert page.token != Control().token
