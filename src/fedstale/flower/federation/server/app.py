"""A ready Flower ServerApp for the federation in a folder.

from fedstale.flower import server_app
app = server_app(start)                  # start(seed) returns the flat parameters of round 0, with buffers if any
"""

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import ServerApp

from fedstale.core import Array, Floats, part, require
from fedstale.flower.federation import settings
from fedstale.flower.federation.ops.gate import note_reply_limit
from fedstale.flower.federation.protocol.grid import GridLink
from fedstale.flower.federation.server.diagnostics import evaluation, status, trace, write_trace
from fedstale.flower.federation.server.health import Health, served
from fedstale.flower.federation.server.rounds import ClosedRound, Server, Start
from fedstale.flower.federation.state import audit, roster
from fedstale.flower.federation.state.manifest import read_metrics, write_sealed
from fedstale.lab.runs.models import LAYOUT
from fedstale.privacy.sums import Summed

Layout = dict[str, list[dict[str, Any]]]
STALLED = 10.0  # deadlines without a committed round after which a server is not healthy
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # buffers of torch's normalisation layers


def server_app(start: Start, layout: Layout | None = None) -> ServerApp:
    """A ServerApp that plays all rounds; its run configuration names the folder of the federation.

    `layout` names the parameters for `fedstale federation export`: `task.layout()`. `of_module` brings its own.
    """
    app = ServerApp()

    def main(grid: Any, context: Context) -> None:
        folder = Path(str(context.run_config["federation"]))
        audit.log_to(folder / "logs" / "rounds.jsonl")
        found = start.layout() if isinstance(start, OfModule) else layout
        for _ in record(settings.read(folder), grid, start, found):
            pass

    app.main()(main)
    return app


def record(
    chosen: settings.Settings, grid: Any, start: Start, layout: Layout | None = None
) -> Generator[ClosedRound, None, None]:
    """Play the rounds that are not committed yet; writes status.json after each and trace.csv at the end."""
    link = GridLink(grid)
    server = Server(chosen, link, lambda: roster.read(chosen.roster), start)
    first = server.ledger.initial(1).checkpoint
    link.size = first.params.nbytes + (0 if first.buffers is None else first.buffers.nbytes)
    if isinstance(rule := server.rules.strategy, Summed):
        link.size = 8 * rule.size(len(first.params))
    note_reply_limit(chosen.folder, link.size)
    if layout is not None:
        write_sealed(chosen.folder / LAYOUT, layout)
    last = evaluation(read_metrics(chosen.state))
    health = Health(STALLED * chosen.file.round.deadline)
    with served(health, chosen.file.health.port):
        for closed in server.play():
            last = evaluation([closed.line]) or last
            heard = {key: closed.line[key] for key in ("heard_weight", "missing")}
            now = status(closed.state, server.rules.estimator) | heard | last
            write_sealed(chosen.folder / "status.json", now)
            health.update(now)
            yield closed
    write_trace(chosen.folder / "trace.csv", *trace(read_metrics(chosen.state)))


def of_module(make: Callable[[], Any], personal: Sequence[str] = (), buffers: str = "average") -> "OfModule":
    """A `start` for server_app: the initial weights of the nn.Module that `make()` returns, drawn from the seed.

    With the running statistics of its normalisation layers, if it has any. `personal` and `buffers="local"` name
    what stays with the clients, as in client_app. For other buffers that training changes write a function that
    returns `task.init(seed), task.initial_buffers`.
    """
    return OfModule(make, tuple(personal), buffers)


@part
class OfModule:
    """Where the training of an nn.Module starts, and what its parameters are called."""

    make: Callable[[], Any]
    personal: tuple[str, ...] = ()
    buffers: str = "average"

    def __post_init__(self) -> None:
        known = ("average", "local", "frozen")
        require(self.buffers in known, f"buffers must be {' or '.join(map(repr, known))}, got {self.buffers!r}")

    def __call__(self, seed: int) -> Array | tuple[Array, Floats]:
        """The flat parameters of round 0, with the running statistics if there are any."""
        from fedstale.core.rng import stream
        from fedstale.tasks.flat import Buffers, draw, seeded, vector

        with seeded(draw(stream(seed, "init"))):
            module = self.make()
        params, names = vector(module, self._shared(module)), [*self._statistics(module)]
        return (params, Buffers(module, names).read()) if names else params

    def layout(self) -> Layout:
        """Names, shapes and types of what the parameters and buffers are made of."""
        from fedstale.tasks.flat import layout

        module = self.make()
        return layout(self._shared(module), self._statistics(module))

    def _shared(self, module: Any) -> list[Any]:
        """The slots of the parameters that do not stay with the clients."""
        from fedstale.tasks.flat import personal_names, slots

        fedbn = self.buffers == "local"
        own = personal_names(module, self.personal, fedbn) if self.personal or fedbn else ()
        return [slot for slot in slots(module, own) if slot.name not in own]

    def _statistics(self, module: Any) -> dict[str, Any]:
        """The running statistics of normalisation layers that are averaged, by name."""
        found = module.named_buffers() if self.buffers == "average" else ()
        return {name: b for name, b in found if name.rpartition(".")[2] in STATISTICS}
