"""A ready Flower ServerApp for the federation in a folder.

from fedstale.flower import server_app
app = server_app(start)                  # start(seed) returns the flat parameters of round 0
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import ServerApp

from fedstale.core import Array
from fedstale.federation import settings
from fedstale.federation.protocol.grid import GridLink
from fedstale.federation.server.diagnostics import status, write_trace
from fedstale.federation.server.rounds import ClosedRound, Server
from fedstale.federation.state import roster
from fedstale.federation.state.manifest import read_metrics
from fedstale.runs.store import write_json


def server_app(start: Callable[[int], Array]) -> ServerApp:
    """A ServerApp that plays all rounds; its run configuration names the folder of the federation."""
    app = ServerApp()

    def main(grid: Any, context: Context) -> None:
        folder = Path(str(context.run_config["federation"]))
        _log_to(folder / "logs" / "rounds.log")
        for _ in record(settings.read(folder), grid, start):
            pass

    app.main()(main)
    return app


def record(chosen: settings.Settings, grid: Any, start: Callable[[int], Array]) -> Iterator[ClosedRound]:
    """Play the rounds that are not committed yet; writes status.json after each and trace.csv at the end."""
    keys = {m.id: m.key for m in roster.read(chosen.roster).members}
    link = GridLink(grid, proven=chosen.file.link.tls, keys=keys)
    server = Server(chosen, link, lambda: roster.read(chosen.roster), start)
    link.size = 4 * len(server.ledger.initial(1).checkpoint.params)
    for closed in server.play():
        write_json(chosen.folder / "status.json", status(closed.state, server.rules.estimator))
        yield closed
    write_trace(chosen.folder / "trace.csv", read_metrics(chosen.state))


def of_module(make: Callable[[], Any]) -> Callable[[int], Array]:
    """A `start` for server_app: the initial weights of the nn.Module that `make()` returns, drawn from the seed."""

    def start(seed: int) -> Array:
        from fedstale.rng import stream
        from fedstale.tasks.flat import draw, seeded, vector

        with seeded(draw(stream(seed, "init"))):
            return vector(make())

    return start


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("fedstale.federation")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
