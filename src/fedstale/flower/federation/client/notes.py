"""What a client process writes down for the process that comes after it, and for `fedstale federation`.

HOME/client.json   its pid and node number, and whether it is online or what keeps it from that
HOME/order         the order that it is working on
"""

import logging
import os
import threading
from pathlib import Path
from typing import Any

from fedstale.core import BadInput
from fedstale.lab.runs.store import read_json, write_json

log = logging.getLogger("fedstale.flower.federation")


class Notes:
    """The notes of one client; only its owner can read them."""

    def __init__(self, home: Path) -> None:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path, self.order = home / "client.json", home / "order"
        self.node: int | None = noted(home).get("node")
        self.state, self.lock = "", threading.Lock()

    def signed_in(self, node: int) -> None:
        """The client is online under this node number."""
        self.node, self.state = node, ""
        self.tell("online")

    def tell(self, state: str) -> None:
        """Log and write down what the client is doing, if that has changed."""
        with self.lock:  # parts of a message are carried by several threads
            if state != self.state:
                self.state = state
                log.info("%s", state)
                write_json(self.path, {"pid": os.getpid(), "node": self.node, "state": state})

    def begin(self, order: bytes) -> None:
        """Remember an order until `finish`: after a crash the server must not wait for its reply."""
        self.order.write_bytes(order)

    def finish(self) -> None:
        """The order is answered, or nobody waits for it any more."""
        self.order.unlink(missing_ok=True)


def noted(home: Path) -> dict[str, Any]:
    """What the last process of a client wrote down; empty if there was none."""
    try:
        return read_json(home / "client.json") if (home / "client.json").exists() else {}
    except BadInput:  # the machine lost power while it was written
        return {}
