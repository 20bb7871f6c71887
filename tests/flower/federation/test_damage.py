"""A battery of damaged federations: each is refused with a sentence, or goes on to the same end.

Every file of a federation after three rounds is deleted, emptied, cut, flipped, replaced and edited. What must
hold: no other error than a sentence, no committed round lost or begun again, nothing removed, and no other result.
"""

import json
import shutil

import numpy as np
import pytest

from fedstale.cli import federation as cli
from fedstale.core import BadInput
from fedstale.flower.federation.server.diagnostics import read_status, status
from fedstale.flower.federation.state import roster
from fedstale.flower.federation.state.backup import copy_federation, read_model
from fedstale.flower.federation.state.manifest import read_metrics, write_sealed
from tests.flower.federation.inprocess import InProcess, roster_of
from tests.flower.federation.parts import TASK, D, N, made, played, table
from tests.flower.federation.parts import server as server_of

ROWS = table(5)
SENTENCES = (BadInput, OSError)  # the command line makes one sentence of either


def flipped(at):
    def damage(path):
        content = bytearray(path.read_bytes())
        content[int(at * (len(content) - 1))] ^= 1
        path.write_bytes(content)

    return damage


def replaced(content):
    return lambda path: path.write_bytes(content)


def folder_instead(path):
    path.unlink()
    path.mkdir()


DAMAGES = {
    "deleted": lambda path: path.unlink(),
    "emptied": replaced(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "last byte cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "first byte flipped": flipped(0.0),
    "byte flipped early": flipped(0.3),
    "byte flipped late": flipped(0.8),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "a list": replaced(b"[]\n"),
    "an empty object": replaced(b"{}\n"),
    "deep": replaced(b"[" * 100_000),
    "not text": replaced(b"\xff\xfe\x00"),
    "a folder": folder_instead,
}
FILES = {
    "manifest": "state/manifest.json",
    "metrics": "state/metrics.jsonl",
    "checkpoint": "state/round-3/checkpoint.npz",
    "row": "state/rows/*/0.*.npy",
    "status": "status.json",
    "roster": "roster.json",
    "model": "model.json",
}


def edited(file, change):
    def damage(folder):
        path = folder / file
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return damage


def metrics_edited(folder):
    path = folder / "state" / "metrics.jsonl"
    path.write_text(path.read_text().replace('"heard":[', '"heard":[5,', 1))


def older_row(folder):
    """The row of a client is that of another one: as long, and whole."""
    first, second = sorted(min((folder / "state" / "rows").iterdir()).iterdir())[:2]
    shutil.copy(second, first)


EDITS = {
    "manifest: ids reversed": edited("state/manifest.json", lambda m: m | {"ids": m["ids"][::-1]}),
    "manifest: round before": edited("state/manifest.json", lambda m: m | {"t": 2}),
    "manifest: no metrics": edited("state/manifest.json", lambda m: {k: m[k] for k in m if k != "metrics"}),
    "manifest: t is text": edited("state/manifest.json", lambda m: m | {"t": "3"}),
    "metrics: somebody else heard": metrics_edited,
    "row of another client": older_row,
    "status: another round": edited("status.json", lambda s: s | {"round": 9}),
    "roster: weight": edited("roster.json", lambda r: r | {"clients": [r["clients"][0] | {"weight": 9.0}]}),
    "state is a file": lambda folder: (shutil.rmtree(folder / "state"), (folder / "state").write_text("")),
    "state is gone": lambda folder: shutil.rmtree(folder / "state"),
    "state is empty": lambda folder: (shutil.rmtree(folder / "state"), (folder / "state").mkdir()),
    "rows are gone": lambda folder: shutil.rmtree(folder / "state" / "rows"),
    "checkpoint folder is gone": lambda folder: shutil.rmtree(folder / "state" / "round-3"),
    "lock is a folder": lambda folder: ((folder / "state" / "lock").unlink(), (folder / "state" / "lock").mkdir()),
}


def one_file(file, damage):
    return lambda folder: DAMAGES[damage](min(folder.glob(FILES[file])))


BATTERY = {f"{file}: {damage}": one_file(file, damage) for file in FILES for damage in DAMAGES} | EDITS


def playing(folder, rows):
    link = InProcess(TASK, range(N))
    s = server_of(folder, link)
    s.roster = lambda: roster.read(folder / "roster.json")
    return s, played(s, link, rows)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A federation after three rounds, and the end of its fifth."""
    folder = tmp_path_factory.mktemp("damage") / "federation"
    folder.mkdir()
    (folder / "federation.toml").write_text(
        'name = "test"\nrounds = 8\nstrategy = "fedstale"\nlocal = { lr = 0.05, steps = 3 }\n'
    )
    roster.save(folder / "roster.json", roster_of(range(N)))
    s, rounds = playing(folder, ROWS[:3])
    write_sealed(folder / "status.json", status(rounds[-1].state, s.rules.estimator))
    piece = {"name": "w", "shape": [D], "dtype": "float32"}
    write_sealed(folder / "model.json", {"parameters": [piece], "buffers": []})
    other = folder.with_name("other")
    shutil.copytree(folder, other)
    return folder, playing(other, ROWS[3:])[1][-1].line["fingerprint"]


def contents(folder):
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "lock"}


def test_the_battery_is_large():
    assert len(BATTERY) >= 66


@pytest.mark.parametrize("damage", BATTERY)
def test_damage_is_refused_with_a_sentence_or_harmless(whole, tmp_path, damage):
    folder, end = tmp_path / "f", whole[1]
    shutil.copytree(whole[0], folder)
    BATTERY[damage](folder)
    before = contents(folder)
    shown = reported(folder)
    exported = exported_of(folder)
    assert exported is None or np.array_equal(exported, exported_of(whole[0]))
    if copied(folder, tmp_path / "copy"):
        assert contents(tmp_path / "copy" / "state").values()
        assert resumed(tmp_path / "copy")[1] or read_metrics(tmp_path / "copy" / "state")[-1]["fingerprint"] == end
    assert contents(folder) == before
    rounds, sentence = resumed(folder)
    if sentence:
        assert "--again" not in sentence
        assert "\n" not in sentence
        assert contents(folder) == before
    else:
        assert [closed.line["round"] for closed in rounds] == [4, 5]
        assert rounds[-1].line["fingerprint"] == end
        assert np.array_equal([line["round"] for line in read_metrics(folder / "state")], [1, 2, 3, 4, 5])
        assert shown in (None, reported(whole[0]))


def resumed(folder):
    """The next two rounds, or the sentence with which the state is refused."""
    try:
        return playing(folder, ROWS[3:])[1], ""
    except SENTENCES as error:
        return [], str(error)


def exported_of(folder):
    """The parameters that `export` writes; None where they are refused with a sentence."""
    try:
        return read_model(folder)[1]["w"]
    except SENTENCES:
        return None


def copied(folder, target):
    """Whether `backup` makes a copy, which it refuses with a sentence otherwise."""
    try:
        return copy_federation(folder, target) == 3
    except SENTENCES:
        assert not target.exists()
        return False


def reported(folder):
    """What `status` and `run` would read; None where it is refused with a sentence."""
    s = made(folder)
    try:
        lines = read_metrics(s.state)
        return lines, read_status(folder / "status.json", len(lines))["round"], cli.runner.alive(s)
    except SENTENCES:
        return None
