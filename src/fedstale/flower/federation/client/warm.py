"""A client that stays loaded: one process signs in, trains and answers, message after message.

Flower's own SuperNode starts a process for every message, which costs seconds. Here the ClientApp is loaded once,
with its libraries, and again only when the server runs another version of the app.
"""

import logging
import signal
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedstale.flower.federation import adapter
from fedstale.flower.federation.client.fleet import PAUSES, Ended, Fleet, Refused
from fedstale.flower.federation.client.notes import Notes
from fedstale.flower.federation.ops.keeper import keep_the_keeper
from fedstale.flower.federation.settings import Settings

log = logging.getLogger("fedstale.flower.federation")
LOOKS = (0.25, 3.0)  # seconds between looks for a message: at least, and at most
SHARE = 0.05  # of the time since the last message: rounds that come rarely are looked for rarely


class Loaded(NamedTuple):
    """The app of a run, ready to answer."""

    run: int
    folder: Path
    app: ClientApp
    context: Context


class Apps:
    """The app of the run at hand, kept loaded from message to message."""

    def __init__(self, fleet: Fleet, config: dict[str, Any]) -> None:
        self.fleet, self.config = fleet, config
        self.loaded: Loaded | None = None
        self.states: dict[int, RecordDict] = {}  # what the app keeps on the client, by series of runs

    def of(self, number: int) -> Loaded:
        """The app of this run; raises whatever its modules raise when they are imported."""
        if self.loaded is None or self.loaded.run != number:
            self.loaded = self._load(number, self.loaded)
        return self.loaded

    def _load(self, number: int, old: Loaded | None) -> Loaded:
        run, fab = self.fleet.app(number)
        adapter.install_from_fab(fab.content, skip_prompt=True)
        folder = adapter.get_project_dir(run.fab_id, run.fab_version, fab.hash_str)
        if old and old.folder != folder:
            forget_modules(old.folder)
        load = adapter.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
        app = load(run.fab_id, run.fab_version, fab.hash_str)
        node, state = self.fleet.node.node_id, self.states.setdefault(run.series_id, RecordDict())
        settings = adapter.get_fused_config_from_fab(fab.content, run)
        task = adapter.TaskIdentity
        task.run_id, task.node_id, task.task_id = number, node, 1
        context = Context(number, node, self.config, state, settings, series_id=run.series_id)
        return Loaded(number, folder, app, context)


def forget_modules(folder: Path) -> None:
    """Let the modules in a folder be imported again, from elsewhere."""
    own = str(folder)
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and module.__spec__ and (module.__spec__.origin or "").startswith(own):
            del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if not entry.startswith(own)]


def serve(s: Settings, client: int, home: Path, key: Path) -> None:
    """Be client number `client` until SIGTERM or Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    keep_the_keeper()
    link, notes = s.file.link, Notes(home)
    authority = s.folder / "keys" / "ca.pem" if link.tls else None
    fleet = Fleet(f"{link.host}:{link.port}", authority, key, notes)
    try:
        stay(fleet, Apps(fleet, {"client": client, "own": str(s.own(client))}), notes)
    finally:
        fleet.close()
        notes.tell("offline")


def stay(fleet: Fleet, apps: Apps, notes: Notes) -> None:
    """Be signed in and answer, for ever; a client that is refused says why and tries again."""
    pause, longest = PAUSES
    while True:
        try:
            fleet.sign_in()
            pause = PAUSES[0]
            own_up(fleet, notes)
            attend(fleet, apps, notes)
        except (Refused, Ended) as why:
            notes.tell(str(why))
            time.sleep(pause)
            pause = min(2 * pause, longest)


def own_up(fleet: Fleet, notes: Notes) -> None:
    """Tell the server of an order that the last process did not finish, so that it does not wait for the reply."""
    if notes.order.exists():
        try:
            order = adapter.message_from_proto(adapter.ProtoMessage.FromString(notes.order.read_bytes()))
            error = Error(adapter.ErrorCode.CLIENT_APP_CRASHED, "the client's process ended while it was training")
            fleet.send(Message(error, reply_to=order), 0.0)
        except Ended as why:
            log.info("the order of the last process is over: %s", why)
        except Exception:  # a note that cannot be read, or is too old, is worth nothing
            log.warning("the note on an order cannot be used:\n%s", traceback.format_exc())
        notes.finish()


def attend(fleet: Fleet, apps: Apps, notes: Notes) -> None:
    """Answer messages for ever; looks for the next one often after a message, and less and less later.

    In a large federation every pause is longer, so that the link is not busy with those who have nothing to do.
    """
    last = time.monotonic()
    while True:
        found = fleet.receive()
        if found is None:
            least, most = LOOKS
            time.sleep(fleet.crowd.pause(min(max(SHARE * (time.monotonic() - last), least), most)))
            continue
        notes.begin(adapter.message_to_proto(found[0]).SerializeToString())
        try:
            began = time.monotonic()
            reply = answer(fleet.with_content(found[0].metadata.run_id, found[1]), apps)
            fleet.send(reply, time.monotonic() - began)
        except Ended as why:
            log.info("round %s is over: %s", found[0].metadata.group_id, why)
        notes.finish()
        last = time.monotonic()


def answer(message: Message, apps: Apps) -> Message:
    """The app's reply to a message, or an error if the app fails."""
    code = adapter.ErrorCode.LOAD_CLIENT_APP_EXCEPTION
    try:
        loaded = apps.of(message.metadata.run_id)
        code = adapter.ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        return loaded.app(message=message, context=loaded.context)
    except (Ended, Refused):
        raise
    except Exception as error:
        log.error("the app failed in round %s:\n%s", message.metadata.group_id, traceback.format_exc())
        return Message(Error(code, f"{type(error).__name__}: {error}"), reply_to=message)
