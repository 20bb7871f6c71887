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
from fedstale.flower.federation.state import roster


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
    for name, there in processes.stop(s, *(f"client-{client}" for client in clients)).items():
        print(f"{name} {'stopped' if there else 'was not running here'}")


def add(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="A readable name.")] = "",
    weight: Annotated[float, typer.Option(help="Its weight a_i before normalising.")] = 1.0,
) -> None:
    """Add a client, with a key of its own, to the roster from the next round on."""
    s = settings.read(folder)
    old = roster.read(s.roster)
    new = old.joined(new_key(folder, old.next, s.file.link.tls), name or f"client-{old.next}", weight)
    roster.save(s.roster, new)
    if processes.pid_of(s, "link") is not None:
        control.register(s)
    print(f"client {old.next} (roster {new.version}); next: fedstale federation join {folder} {old.next}")


def remove(folder: Folder, client: Annotated[int, typer.Argument(help="Client number.")]) -> None:
    """Remove a client, and what is remembered of it, from the roster from the next round on."""
    s = settings.read(folder)
    new = roster.read(s.roster).left(client)
    roster.save(s.roster, new)
    processes.stop(s, f"client-{client}")
    print(f"client {client} is gone (roster {new.version})")


def need_flower() -> None:
    """Refuse to go on where Flower is not installed."""
    there = importlib.util.find_spec("flwr") is not None
    require(there, "a federation needs Flower, which is not installed here: pip install 'fedstale[flower]'")


def _serve(s: settings.Settings, client: int) -> None:
    """Be a client, in this process, until it is stopped."""
    from fedstale.flower.federation.client.warm import serve

    name = f"client-{client}"
    os.environ |= processes.environment(processes.home(s, name))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    serve(s, client, processes.home(s, name), launcher.private_key(s, client))


def new_key(folder: Path, client: int, tls: bool) -> str:
    """Make the key of a client; its hash, by which the roster knows it."""
    if not tls:
        return roster.key_of(client)
    from fedstale.flower.federation.ops.keys import make_node_key

    return make_node_key(folder / "keys" / f"client-{client}")
