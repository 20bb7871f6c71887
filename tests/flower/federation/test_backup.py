"""A federation is copied while its server commits rounds, and the copy goes on to the same end."""

import threading
import time

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.flower.federation.state import roster
from fedstale.flower.federation.state.backup import copy_federation, unswept
from fedstale.flower.federation.state.manifest import read_metrics
from tests.flower.federation.inprocess import InProcess, roster_of
from tests.flower.federation.parts import TASK, N, played, server, table

COPIES, ROWS = 15, table(8)
TOML = 'name = "test"\nrounds = 8\nstrategy = "fedstale"\nlocal = { lr = 0.05, steps = 3 }\n'


def prepared(folder):
    folder.mkdir()
    (folder / "federation.toml").write_text(TOML)
    roster.save(folder / "roster.json", roster_of(range(N)))
    for name in ("logs", "keys", "app/logs"):
        (folder / name).mkdir(parents=True)
    (folder / "keys" / "client-0").write_text("private")
    (folder / "app" / "logs" / "kept.py").write_text("")
    (folder / "link.sqlite").write_text("messages")
    return folder


def row(t):
    return ROWS[t % len(ROWS)]


def test_every_copy_that_is_made_while_rounds_are_committed_goes_on_with_the_same_bits(tmp_path):
    folder, copies, stop = prepared(tmp_path / "f"), {}, threading.Event()
    link = InProcess(TASK, range(N))
    play, began = server(folder, link, rounds=10**6).play(), threading.Event()
    committed: list[int] = []

    def commit():
        t, last = 0, None
        while last is None or t <= last:  # one round more than the last copy has
            link.there = np.flatnonzero(row(t)).tolist()
            t = next(play).line["round"]
            committed.append(t)
            began.set()
            last = max(copies.values(), default=0) if stop.is_set() else None
        play.close()

    thread = threading.Thread(target=commit)
    thread.start()
    assert began.wait(600)
    try:
        for k in range(COPIES):
            copies[k] = copy_federation(folder, tmp_path / f"copy-{k}")
            while k < 4 and committed[-1] <= copies[k] and thread.is_alive():
                time.sleep(0.001)  # so that the first copies are of different rounds, on a busy machine too
    finally:
        stop.set()
        thread.join()
    lines = read_metrics(folder / "state")
    assert len({*copies.values()}) > 3  # rounds were committed meanwhile
    for k, t in copies.items():
        copy, again = tmp_path / f"copy-{k}", InProcess(TASK, range(N))
        assert read_metrics(copy / "state") == lines[:t]
        after = played(server(copy, again, rounds=10**6), again, row(t)[None])[0]
        assert after.line["fingerprint"] == lines[t]["fingerprint"]


def test_a_server_removes_nothing_while_it_is_copied_and_all_of_it_later(tmp_path):
    link = InProcess(TASK, range(N))
    s, state = server(tmp_path, link), tmp_path / "state"
    play = s.play()
    next(play)
    first = {p.relative_to(state) for p in state.glob("r*/**/*.np*")}
    with unswept(state):
        next(play)
        assert first <= {p.relative_to(state) for p in state.glob("r*/**/*.np*")}
    next(play)
    assert not first & {p.relative_to(state) for p in state.glob("r*/**/*.np*")}
    play.close()


def test_settings_keys_and_app_are_copied_and_nothing_of_the_processes(tmp_path):
    folder, link = prepared(tmp_path / "f"), InProcess(TASK, range(N))
    played(server(folder, link), link, ROWS[:2])
    assert copy_federation(folder, tmp_path / "saved") == 2
    assert copy_federation(tmp_path / "saved", tmp_path / "restored") == 2
    found = {p.name for p in (tmp_path / "restored").iterdir()}
    assert found == {"federation.toml", "roster.json", "keys", "app", "state"}
    assert (tmp_path / "restored" / "app" / "logs" / "kept.py").exists()
    for path in (tmp_path / "saved", *(tmp_path / "saved").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_federation_without_a_round_can_be_copied(tmp_path):
    folder = prepared(tmp_path / "f")
    assert copy_federation(folder, tmp_path / "saved") == 0
    (folder / "state").mkdir()
    assert copy_federation(folder, tmp_path / "again") == 0


def test_damage_is_not_copied(tmp_path):
    folder, link = prepared(tmp_path / "f"), InProcess(TASK, range(N))
    played(server(folder, link), link, ROWS[:2])
    file = min((folder / "state").glob("rows/*/0.*.npy"))
    for damage in (lambda: file.write_bytes(file.read_bytes()[:-1] + b"x"), file.unlink):
        damage()
        with pytest.raises(BadInput, match="is damaged or missing"):
            copy_federation(folder, tmp_path / "saved")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_copy_replaces_nothing(tmp_path):
    folder = prepared(tmp_path / "f")
    with pytest.raises(BadInput, match="must be a new or an empty folder"):
        copy_federation(folder, folder)
    with pytest.raises(BadInput, match="must be outside"):
        copy_federation(folder, folder / "backups" / "monday")
    with pytest.raises(BadInput, match=r"is not a federation or a backup of one: it has no federation.toml"):
        copy_federation(tmp_path / "nothing", tmp_path / "saved")
