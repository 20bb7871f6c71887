"""A state that somebody has damaged is refused with a sentence, and nothing of it is removed."""

import json

import pytest
from typer.testing import CliRunner

from fedstale.cli import federation as cli
from fedstale.core import BadInput
from fedstale.flower.federation.ops import runner
from fedstale.flower.federation.state.manifest import committed_round, read_manifest, read_metrics, write_manifest
from tests.flower.federation.inprocess import InProcess
from tests.flower.federation.parts import TASK, N, played, server, table


@pytest.fixture
def state(tmp_path):
    """The state of a federation after three rounds."""
    link = InProcess(TASK, range(N))
    played(server(tmp_path, link), link, table(3))
    return tmp_path / "state"


def resume(state):
    return next(server(state.parent, InProcess(TASK, range(N))).play())


def files(state):
    return {str(p): p.read_bytes() for p in state.rglob("*") if p.is_file() and p.name != "lock"}


def test_a_manifest_survives_its_file(tmp_path):
    assert read_manifest(tmp_path) is None
    write_manifest(tmp_path, {"t": 4, "run": "x", "ids": [0, 2]})
    assert read_manifest(tmp_path) == {"format": 3, "t": 4, "run": "x", "ids": [0, 2]}
    assert committed_round(tmp_path) == 4


def test_without_its_manifest_a_state_is_refused_and_kept(state):
    (state / "manifest.json").unlink()
    before = files(state)
    with pytest.raises(
        BadInput, match=r"manifest.json is missing, but rounds were committed, see metrics.jsonl; restore it"
    ):
        resume(state)
    assert files(state) == before


def test_a_kill_in_the_first_commit_is_no_lost_manifest(tmp_path):
    (tmp_path / "state" / "round-0").mkdir(parents=True)
    assert resume(tmp_path / "state").line["round"] == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m | {"ids": m["ids"][::-1]},
        lambda m: {key: value for key, value in m.items() if key != "rows"},
        lambda m: m | {"rows": {path: files | {"0": files["1"]} for path, files in m["rows"].items()}},
        lambda m: m | {"t": 2},
        lambda m: {key: value for key, value in m.items() if key != "checksum"},
    ],
    ids=["ids reversed", "no rows", "the row of another client", "another round", "no checksum"],
)
def test_an_edited_manifest_is_refused(state, change):
    path = state / "manifest.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(BadInput, match=r"manifest.json was changed after it was written"):
        resume(state)


def test_another_format_is_refused(state):
    path = state / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(BadInput, match="has state format 99, this version reads 3"):
        resume(state)


def test_a_state_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "state").write_text("")
    with pytest.raises(BadInput, match="state must be a folder, got a file"):
        resume(tmp_path / "state")


def test_metrics_that_were_cut_are_refused_and_no_option_is_advised_that_there_is_not(state):
    path = state / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadInput, match="has 2 lines, but 3 rounds were committed; restore it") as error:
        resume(state)
    assert "--again" not in str(error.value)


@pytest.mark.parametrize("line", [b'{"round": 7}', b"[1]", b"7", b"{", b"\xff"])
def test_a_damaged_line_of_metrics_is_a_sentence(state, line):
    path = state / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], line, *lines[2:]]))
    with pytest.raises(BadInput, match=r"metrics.jsonl is damaged"):
        read_metrics(state)


def test_a_line_that_was_never_committed_is_replaced(state):
    with (state / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 4, "half')
    resume(state)
    assert [line["round"] for line in read_metrics(state)] == [1, 2, 3, 4]


def test_run_and_status_say_so_before_anything_is_started(tmp_path):
    folder = tmp_path / "f"
    CliRunner().invoke(cli.app, ["init", str(folder), "--insecure"], catch_exceptions=False)
    (folder / "state").mkdir()
    (folder / "state" / "metrics.jsonl").write_text('{"round": 1}\n')
    for command in ("run", "status"):
        with pytest.raises(BadInput, match=r"manifest.json is missing"):
            CliRunner().invoke(cli.app, [command, str(folder)], catch_exceptions=False)
    assert not runner.processes.names(folder)


def test_only_the_owner_can_read_the_state(state):
    assert state.stat().st_mode & 0o077 == 0
