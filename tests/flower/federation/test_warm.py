"""A client that stays loaded, against a connection in this process."""

import hashlib
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="flwr is not installed; `make test-flower` runs these in their own environment")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from fedstale.flower.federation.client import warm
from fedstale.flower.federation.client.fleet import Crowd, Ended, Refused
from fedstale.flower.federation.client.notes import Notes, noted
from tests.flower.federation.parts import made
from tools import federation_chaos as chaos

APP = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
made, client = [], ClientApp()
@client.train()
def train(message, context):
    made.append(1)
    context.state.setdefault("own", ConfigRecord({"calls": 0}))["calls"] += 1
    if message.metadata.group_id == "bad":
        raise ValueError("no data")
    told = {"version": VERSION, "loaded": len(made), "calls": context.state["own"]["calls"],
            "client": context.node_config["client"]}
    return Message(RecordDict({"told": ConfigRecord(told)}), reply_to=message)
"""


class Connection:
    """What Fleet is to the loop: messages wait in a list, and replies are kept."""

    def __init__(self, folder, messages=()):
        self.folder, self.messages, self.sent, self.node = folder, list(messages), [], SimpleNamespace(node_id=7)
        self.crowd = Crowd()

    def receive(self):
        if not self.messages:
            raise Refused("the end of the test")
        message = self.messages.pop(0)
        return message if message is None else (message, message)

    def with_content(self, run, message):
        if message.metadata.group_id == "killed":
            raise SystemExit
        if message.metadata.group_id == "late":
            raise Ended("the run has ended")
        return message

    def app(self, run):
        """Odd and even runs have different versions of the app."""
        folder = self.folder / f"app-{run % 2}"
        for path, text in chaos.APP.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(APP.replace("VERSION", str(run % 2)) if path.endswith("apps.py") else text)
        content = build_fab_from_disk(folder)
        hashed = hashlib.sha256(content).hexdigest()
        about = SimpleNamespace(
            fab_id="me/chaos", fab_version="1.0.0", fab_hash=hashed, series_id=3, override_config={}
        )
        return about, SimpleNamespace(content=content, hash_str=hashed)

    def send(self, reply, seconds):
        self.sent.append(reply)


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(warm, "LOOKS", (0.0, 0.0))
    yield
    warm.forget_modules(tmp_path)


def order(run=1, group="1"):
    message = Message(RecordDict({"order": ConfigRecord({"t": 1})}), 7, "train", group_id=group)
    message.metadata.__dict__.update(_run_id=run, _message_id=message.object_id)
    return message


def attended(tmp_path, *messages):
    """What a client answers to these messages."""
    connection, notes = Connection(tmp_path, messages), Notes(tmp_path / "notes")
    with pytest.raises(Refused, match="the end of the test"):
        warm.attend(connection, warm.Apps(connection, {"client": 4}), notes)
    assert not notes.order.exists()
    return connection.sent


def test_an_app_stays_loaded_and_keeps_its_state(tmp_path):
    replies = attended(tmp_path, order(), None, order(), order())
    told = [dict(reply.content["told"]) for reply in replies]
    assert told == [{"version": 1, "loaded": k, "calls": k, "client": 4} for k in (1, 2, 3)]


def test_another_version_of_the_app_is_loaded_anew_with_the_same_state(tmp_path):
    replies = attended(tmp_path, order(run=1), order(run=2), order(run=1))
    told = [dict(reply.content["told"]) for reply in replies]
    assert [(t["version"], t["loaded"], t["calls"]) for t in told] == [(1, 1, 1), (0, 1, 2), (1, 1, 3)]


def test_an_app_that_fails_is_an_error_and_the_client_goes_on(tmp_path):
    bad, good = attended(tmp_path, order(group="bad"), order())
    assert bad.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert "no data" in bad.error.reason
    assert good.content["told"]["version"] == 1


def test_an_app_that_does_not_load_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setitem(chaos.APP, "chaos/__init__.py", "import missing_module")
    (reply,) = attended(tmp_path, order())
    assert reply.error.code == ErrorCode.LOAD_CLIENT_APP_EXCEPTION


def test_a_client_that_is_refused_says_why_and_tries_again(tmp_path, monkeypatch):
    connection, notes, pauses = Connection(tmp_path, [order()]), Notes(tmp_path / "notes"), []
    answers = iter([Refused("the clock is wrong"), Ended("the link answers 404"), None])

    def sign_in():
        if why := next(answers):
            raise why

    def sleep(seconds):
        pauses.append((notes.state, seconds))
        if len(pauses) == 3:
            raise KeyboardInterrupt

    connection.sign_in = sign_in  # type: ignore[attr-defined]
    monkeypatch.setattr(warm.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        warm.stay(connection, warm.Apps(connection, {"client": 4}), notes)
    assert pauses == [("the clock is wrong", 0.5), ("the link answers 404", 1.0), ("the end of the test", 0.5)]
    assert len(connection.sent) == 1


def test_an_order_whose_run_has_ended_is_left(tmp_path):
    (reply,) = attended(tmp_path, order(group="late"), order())
    assert reply.has_content()


def test_the_next_process_tells_of_an_order_that_was_not_finished(tmp_path):
    message, notes = order(group="killed"), Notes(tmp_path / "notes")
    connection = Connection(tmp_path, [remove_content_from_message(message)])
    warm.own_up(connection, notes)
    assert connection.sent == []
    with pytest.raises(SystemExit):
        warm.attend(connection, None, notes)
    warm.own_up(connection, notes)
    (reply,) = connection.sent
    assert reply.error.code == ErrorCode.CLIENT_APP_CRASHED
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    assert not notes.order.exists()


@pytest.mark.parametrize("note", [b"", b"\xff damaged"])
def test_a_note_that_cannot_be_read_is_thrown_away(tmp_path, note):
    connection, notes = Connection(tmp_path), Notes(tmp_path / "notes")
    notes.begin(note)
    warm.own_up(connection, notes)
    assert connection.sent == []
    assert not notes.order.exists()


def test_notes_outlive_their_process_and_damage(tmp_path):
    notes = Notes(tmp_path)
    assert (notes.node, noted(tmp_path)) == (None, {})
    notes.signed_in(12)
    notes.tell("the link cannot be reached")
    assert Notes(tmp_path).node == 12
    assert noted(tmp_path)["state"] == "the link cannot be reached"
    (tmp_path / "client.json").write_text("{")
    assert Notes(tmp_path).node is None


def test_a_client_has_a_folder_for_what_stays_with_it(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(warm, "Fleet", lambda *given: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(warm, "stay", lambda fleet, apps, notes: seen.append(apps.config))
    monkeypatch.setattr(warm, "keep_the_keeper", lambda: None)
    monkeypatch.setattr(warm.signal, "signal", lambda *given: None)
    warm.serve(made(tmp_path), 3, tmp_path / "home", tmp_path / "key")
    assert seen == [{"client": 3, "own": str(made(tmp_path).own(3))}]
