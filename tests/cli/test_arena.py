"""`fedstale arena` as a command: killed and resumed, and with a rule of one's own."""

import json
import re
import signal
from pathlib import Path

import pytest

from fedstale.cli.arena import Size, add, report, run
from fedstale.core import BadInput
from fedstale.view.terminal.console import Format
from fedstale.view.trackers.follow import Tracker
from tests.forks import doomed, forked
from tests.lab.arena.small_suite import TOML, finished

RULE = """
import fedstale as fs

@fs.part
class Half:
    share: float = 0.5

    def init(self, n, d):
        return None

    def aggregate(self, state, r):
        return (self.share * r.average()).astype("float32"), state
"""


def test_a_contest_that_is_killed_ends_with_the_same_bytes(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(TOML)
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    doom = [signal.SIGKILL.value, 200, 0]
    killed = forked(doomed(tmp_path), *doom, "arena", "run", file, "--jobs", "1", "--resume", "--out", cut)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert list(cut.glob("runs/*/result.json"))
    assert not (cut / "arena.json").exists(), "nothing was left to do"
    for out in (cut, whole):
        run(str(file), Size.smoke, jobs=1, resume=True, out=out)
    for name in ("arena.json", "page.html", "table.md"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()


def test_trackers_are_told_of_the_runs_that_are_computed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="the tracker needs the extra `tensorboard`")
    out, file = tmp_path / "contest", tmp_path / "small.toml"
    file.write_text(TOML)
    run(str(file), Size.smoke, jobs=1, log=[Tracker.tensorboard], out=out)
    logged, stored = ({path.name for path in (out / name).iterdir()} for name in ("logs/tensorboard", "runs"))
    assert logged == stored - {"fedstale-store.json"}
    add("mifa", jobs=1, log=[Tracker.tensorboard], out=tmp_path / "contest")
    later = {path.name for path in (out / "logs" / "tensorboard").iterdir()} - logged
    assert later
    assert all(name.startswith("mifa") for name in later)


def test_a_rule_of_ones_own_is_placed_among_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "contest"
    finished(out)
    (tmp_path / "half_rule.py").write_text(RULE)
    monkeypatch.chdir(tmp_path)
    add("half_rule:Half", config=["share=0.7"], jobs=1, out=out)
    assert re.search(r"Half is number \d of 4 by missing progress", capsys.readouterr().out)
    page = (out / "page.html").read_bytes()
    report(out)
    assert (out / "page.html").read_bytes() == page
    with pytest.raises(BadInput, match="label of its own"):
        add("half_rule:Half", config=["share=0.8"], jobs=1, out=out)
    with pytest.raises(BadInput, match="shar"):
        add("half_rule:Half", label="other", config=["shar=0.8"], jobs=1, out=out)
    capsys.readouterr()
    report(out, Format.json, publish=tmp_path / "docs")
    assert {row["rule"] for row in json.loads(capsys.readouterr().out)} == {"fedavg", "unbiased", "stale", "Half"}
    take, board = ((tmp_path / "docs" / name).read_text() for name in ("take.md", "table.md"))
    assert re.match(r"\*\*Take `(\w+)`\.\*\* In 2 test federations it missed on average 0\.\d %", take)
    rules = re.findall(r"^\| (\S+)", board, re.M)[2:]
    assert {rule.strip("*") for rule in rules} == {"fedavg", "unbiased", "stale", "Half"}
    assert [rule.startswith("**") for rule in rules] == [True, False, False, False]
    assert "with p known `" in board
    for name in ("page.html", "results.csv", "server-ms.csv"):
        assert (tmp_path / "docs" / name).read_bytes() == (out / name).read_bytes()
