"""Clients of the roster that answer with far too much: the link keeps nothing of it. Real processes, a minute."""

import sqlite3
from contextlib import closing

import pytest

pytest.importorskip("flwr", reason="flwr is not installed; `make test-flower` runs these in their own environment")

from fedstale.flower.federation import settings
from fedstale.flower.federation.ops import launcher, runner
from fedstale.flower.federation.state.manifest import read_metrics
from tools import federation_chaos as chaos

pytestmark = pytest.mark.slow
HOSTILE = """
import os
from flwr.app import Array
from fedstale.flower.federation.client import app as own
honest, sizes = own.pack_body, {1: 3 << 19, 2: 40 << 20}


def padded(body):
    content = honest(body)
    if size := sizes.get(body.client):
        extra = Array(dtype="uint8", shape=(size,), stype="raw", data=os.urandom(size))
        content.array_records["arrays"]["extra"] = extra
    return content


own.pack_body = padded
"""


def stored(s):
    """The bytes that the link keeps of messages, and the size of its database, in MB."""
    with closing(sqlite3.connect(f"file:{s.folder / 'link.sqlite'}?mode=ro", uri=True)) as database:
        kept = database.execute("SELECT COALESCE(SUM(LENGTH(content)), 0) FROM objects").fetchone()[0]
    return kept / 2**20, sum(f.stat().st_size for f in s.folder.glob("link.sqlite*")) / 2**20


def test_large_replies_do_not_stay_in_the_links_database(tmp_path, monkeypatch):
    monkeypatch.setitem(chaos.APP, "chaos/apps.py", chaos.APP["chaos/apps.py"] + HOSTILE)
    s = settings.check(tmp_path, {"name": "none", "rounds": 1, "local": {"lr": 0.1}})
    try:
        s = chaos.prepare(tmp_path / "f", rounds=3, deadline=chaos.PATIENT)
        sizes = [stored(s) for event in runner.run(s) if event.kind == "round"]
        lines = read_metrics(s.state)
        assert {client for line in lines for client in line["heard"]} == {0}
        assert {told for line in lines for told in line["rejected"].items()} == {("1", "too large")}
        assert max(kept for kept, _ in sizes) < 3  # two of the smaller replies are 3 MB
        assert max(size for _, size in sizes) < 20
    finally:
        launcher.stop_all(s, patience=3.0)


def test_a_link_that_starts_gives_back_the_room_of_deleted_messages(tmp_path, monkeypatch):
    from fedstale.flower.federation.ops import superlink

    path = tmp_path / "link.sqlite"
    superlink.compact(path)
    assert not path.exists()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE objects (content BLOB)")
        database.execute("INSERT INTO objects VALUES (zeroblob(2000000))")
        database.execute("DELETE FROM objects")
        database.commit()
    superlink.compact(path)
    assert path.stat().st_size > 2_000_000  # little enough to be used again
    monkeypatch.setattr(superlink, "SPARE", 1 << 20)
    superlink.compact(path)
    assert path.stat().st_size < 100_000
    path.write_text("not a database")
    superlink.compact(path)
    assert path.read_text() == "not a database"
