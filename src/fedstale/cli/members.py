"""`fedstale federation join`, `leave`, `add`, `remove`: the clients of a federation."""

import importlib.util
import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from fedstale.cli.upkeep import Folder
from fedstale.core import require
from fedstale.flower.federation import settings
from fedstale.flower.federation.ops import control, launcher, processes
from fedstale.flower.federation.ops.gate import new_token
from fedstale.flower.federation.state import audit, roster

Public = Annotated[
    Path | None, typer.Option("--public", help="Its public key, FILE.pub: the private one never leaves the client.")
]


def join(
    folder: Folder,
    clients: Annotated[list[int] | None, typer.Argument(help="Client numbers; all if left out.")] = None,
    isolated: Annotated[bool, typer.Option(help="Train in a new process for every message: slower.")] = False,
    foreground: Annotated[bool, typer.Option(help="Be one client, in this process, for systemd.")] = False,
) -> None:
    """Start clients on this machine, which are started again if they end."""
    need_flower()
    s = settings.read(folder)
    known = roster.read(s.roster).ids.tolist()
    chosen = clients if clients else known
    for client in chosen:
        require(client in known, f"client {client} is not in the roster; known: {known}")
    if foreground:
        require(len(chosen) == 1 and not isolated, "--foreground is for one client that is not --isolated")
        _serve(s, chosen[0])
        return
    for client in chosen:
        print(f"client {client} (pid {launcher.start_client(s, client, isolated)})")
    if not isolated:
        for client, state in launcher.wait_for_clients(s, chosen).items():
            if state != "online":
                print(f"client {client} is not online yet: {state}")


def leave(folder: Folder, clients: Annotated[list[int], typer.Argument(help="Client numbers.")]) -> None:
    """Stop clients on this machine; they stay in the roster and may join again."""
    s = settings.read(folder)
    for name, there in processes.stop(s.folder, *(f"client-{client}" for client in clients)).items():
        print(f"{name} {'stopped' if there else 'was not running here'}")


def add(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="A readable name.")] = "",
    weight: Annotated[float, typer.Option(help="Its weight a_i before normalising.")] = 1.0,
    public: Public = None,
) -> None:
    """Add a client, with a key of its own, to the roster from the next round on."""
    s = settings.read(folder)
    old = roster.read(s.roster)
    _require_new(s, "name", name)
    key = new_key(folder, old.next, public, old)
    _require_new(s, "key", key)
    _save(s, new := old.joined(key, name or f"client-{old.next}", weight))
    audit.note(folder, "added", {"client": old.next, "key": key, "roster": new.version})
    print(f"client {old.next} (roster {new.version}); next: fedstale federation join {folder} {old.next}")


def rotate(
    folder: Folder,
    client: Annotated[int | None, typer.Option(help="Give this client another key.")] = None,
    public: Public = None,
    token: Annotated[bool, typer.Option("--token", help="Make another token for commands.")] = False,
    certificate: Annotated[bool, typer.Option("--certificate", help="Issue another server certificate.")] = False,
) -> None:
    """Replace keys while the federation trains; all that was learned and is known of a client stays."""
    s = settings.read(folder)
    require(client is not None or token or certificate, "rotate needs --client N, --token or --certificate")
    require(public is None or client is not None, "--public is the key of a client: --client N names it")
    if client is not None:
        _rekey(s, client, public)
    if token:
        new_token(folder)
        audit.note(folder, "rotated the token")
        print("another token; the old one is worth nothing")
    if certificate:
        from fedstale.flower.federation.ops.keys import expiry, renew  # cryptography comes with Flower

        require(s.file.link.tls, "a federation without TLS has no certificate")
        renew(folder / "keys")
        audit.note(folder, "rotated the certificate")
        if processes.stop(s.folder, "link").get("link"):  # state and orders are in its database
            control.wait_until_ready(s, launcher.start_link(s))
        print(f"another server certificate, until {expiry(folder / 'keys' / 'server.pem'):%Y-%m-%d}")


def _rekey(s: settings.Settings, client: int, public: Path | None) -> None:
    """Give a client another key; where it runs on this machine it is started again with it."""
    old, here = roster.read(s.roster), processes.pid_of(s.folder, f"client-{client}") is not None
    require(client in old.ids, f"there is no client {client} in the roster")
    key = new_key(s.folder, client, public, old)
    _save(s, new := old.rekeyed(client, key))
    audit.note(s.folder, "rotated a key", {"client": client, "key": key, "roster": new.version})
    if here and public is None:
        processes.stop(s.folder, f"client-{client}")
        launcher.start_client(s, client)
    print(f"client {client} has another key (roster {new.version})")


def _require_new(s: settings.Settings, what: str, value: str) -> None:
    """Refuse, where privacy is counted, a client that was removed: what it has spent went with its row."""
    removed = s.rules.privacy is not None and any(
        event["event"] == "removed" and value and event.get(what) == value for event in audit.read(s.folder)
    )
    why = "it would have its privacy budget once more"
    require(not removed, f"the client with the {what} {value} was removed from this federation: {why}")


def _save(s: settings.Settings, new: roster.Roster) -> None:
    """Write the roster, and tell the link its keys."""
    roster.save(s.roster, new)
    if processes.pid_of(s.folder, "link") is not None:
        control.register(s)


def remove(folder: Folder, client: Annotated[int, typer.Argument(help="Client number.")]) -> None:
    """Remove a client, and what is remembered of it, from the roster from the next round on."""
    s = settings.read(folder)
    old = roster.read(s.roster)
    roster.save(s.roster, new := old.left(client))
    processes.stop(s.folder, f"client-{client}")
    for file in (f"client-{client}", f"client-{client}.pub"):
        (folder / "keys" / file).unlink(missing_ok=True)
    gone = next(m for m in old.members if m.id == client)
    audit.note(folder, "removed", {"client": client, "name": gone.name, "key": gone.key, "roster": new.version})
    print(f"client {client} is gone (roster {new.version})")


def need_flower() -> None:
    """Refuse to go on where Flower is not installed."""
    there = importlib.util.find_spec("flwr") is not None
    require(there, "a federation needs Flower, which is not installed here: pip install 'fedstale[flower]'")


def _serve(s: settings.Settings, client: int) -> None:
    """Be a client, in this process, until it is stopped."""
    from fedstale.flower.federation.client.warm import serve

    name = f"client-{client}"
    os.environ |= processes.environment(processes.home(s.folder, name))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    serve(s, client, processes.home(s.folder, name), launcher.private_key(s, client))


def new_key(folder: Path, client: int, public: Path | None, members: roster.Roster) -> str:
    """Make the key of a client, or take its public key; its hash, which no other client has in the roster."""
    from fedstale.flower.federation.ops.keys import make_node_key, public_hash

    path = folder / "keys" / f"client-{client}"
    if public is None:
        return make_node_key(path)
    found = public_hash(public)
    require(found not in members.by_key(), f"{public} is the key of a client of the roster already")
    path.unlink(missing_ok=True)
    path.with_suffix(".pub").write_bytes(public.read_bytes())
    return found
