"""A ready Flower ServerApp for the federation in a folder.

from fedstale.flower import server_app
app = server_app(start)                  # start(seed) returns the flat parameters of round 0, with buffers if any
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import ServerApp

from fedstale.core import Array, Floats
from fedstale.federation import settings
from fedstale.federation.protocol.grid import GridLink
from fedstale.federation.server.diagnostics import status, write_trace
from fedstale.federation.server.rounds import ClosedRound, Server, Start
from fedstale.federation.state import roster
from fedstale.federation.state.manifest import read_metrics
from fedstale.federation.state.sealed import write_sealed

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # buffers of torch's normalisation layers


def server_app(start: Start) -> ServerApp:
    """A ServerApp that plays all rounds; its run configuration names the folder of the federation."""
    app = ServerApp()

    def main(grid: Any, context: Context) -> None:
        folder = Path(str(context.run_config["federation"]))
        _log_to(folder / "logs" / "rounds.log")
        for _ in record(settings.read(folder), grid, start):
            pass

    app.main()(main)
    return app


def record(chosen: settings.Settings, grid: Any, start: Start) -> Iterator[ClosedRound]:
    """Play the rounds that are not committed yet; writes status.json after each and trace.csv at the end."""
    keys = {m.id: m.key for m in roster.read(chosen.roster).members}
    link = GridLink(grid, proven=chosen.file.link.tls, keys=keys)
    server = Server(chosen, link, lambda: roster.read(chosen.roster), start)
    first = server.ledger.initial(1).checkpoint
    link.size = first.params.nbytes + (0 if first.buffers is None else first.buffers.nbytes)
    for closed in server.play():
        write_sealed(chosen.folder / "status.json", status(closed.state, server.rules.estimator))
        yield closed
    write_trace(chosen.folder / "trace.csv", read_metrics(chosen.state))


def of_module(make: Callable[[], Any]) -> Start:
    """A `start` for server_app: the initial weights of the nn.Module that `make()` returns, drawn from the seed.

    With the running statistics of its normalisation layers, if it has any. For other buffers that training changes
    write a function that returns `task.init(seed), task.initial_buffers`.
    """

    def start(seed: int) -> Array | tuple[Array, Floats]:
        from fedstale.rng import stream
        from fedstale.tasks.flat import Buffers, draw, seeded, vector

        with seeded(draw(stream(seed, "init"))):
            module = make()
        names = [name for name, _ in module.named_buffers() if name.rpartition(".")[2] in STATISTICS]
        return (vector(module), Buffers(module, names).read()) if names else vector(module)

    return start


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("fedstale.federation")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
