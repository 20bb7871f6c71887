"""A Flower strategy object, for a ServerApp of your own.

    strategy = FedstaleStrategy(folder)                       # the folder with federation.toml and roster.json
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=20)

The clients are those of `fedstale.federation.client.app`. Rounds are played by fedstale's own loop, which resumes,
keeps deadlines and refuses what is not an update; Flower's per-round hooks are therefore not used.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import Result, Strategy

from fedstale import core
from fedstale.core import require
from fedstale.federation import settings
from fedstale.federation.protocol.grid import GridLink
from fedstale.federation.server.app import record
from fedstale.federation.server.rounds import Server
from fedstale.federation.state import roster

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class FedstaleStrategy(Strategy):  # type: ignore[misc]  # flwr is not there where types are checked
    """Any fedstale strategy with its estimator and memory, as federation.toml in `folder` says."""

    def __init__(self, folder: Path | str) -> None:
        self.settings = settings.read(Path(folder))

    def start(
        self,
        grid: Any,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Rounds up to `num_rounds`, from the last committed one; `timeout` is a round's deadline."""
        require(train_config is None and evaluate_config is None, "settings of clients are in federation.toml")
        how = self.settings.file.round.model_copy(update={"deadline": float(timeout)})
        file = self.settings.file.model_copy(update={"rounds": num_rounds, "round": how})
        flat, result = _flat(initial_arrays), Result(arrays=initial_arrays)
        chosen = self.settings._replace(file=file)
        keys = {m.id: m.key for m in roster.read(chosen.roster).members}
        link = GridLink(grid, proven=file.link.tls, keys=keys, size=4 * len(flat))
        server = Server(chosen, link, lambda: roster.read(chosen.roster), lambda seed: flat)
        for closed in record(chosen.folder, server):
            t, loss = closed.line["round"], closed.line["train_loss"]
            result.arrays = _shaped(closed.state.checkpoint.params, initial_arrays)
            result.train_metrics_clientapp[t] = MetricRecord({} if loss is None else {"train_loss": loss})
            if evaluate_fn and (scores := evaluate_fn(t, result.arrays)) is not None:
                result.evaluate_metrics_serverapp[t] = scores
        return result

    def summary(self) -> None:
        """Nothing to say that federation.toml does not."""

    def configure_train(self, *_: Any) -> Iterable[Message]:
        raise NotImplementedError("rounds are played by start()")

    def aggregate_train(self, *_: Any) -> tuple[ArrayRecord | None, MetricRecord | None]:
        raise NotImplementedError("rounds are played by start()")

    def configure_evaluate(self, *_: Any) -> Iterable[Message]:
        raise NotImplementedError("evaluate with evaluate_fn")

    def aggregate_evaluate(self, *_: Any) -> MetricRecord | None:
        raise NotImplementedError("evaluate with evaluate_fn")


def _flat(arrays: ArrayRecord) -> core.Array:
    parts = [a.numpy() for a in arrays.values()]
    other = {str(p.dtype) for p in parts} - {"float32"}
    require(not other, f"a model's arrays must be float32 (no buffers of counts), got {sorted(other)}")
    return np.concatenate([p.ravel() for p in parts])


def _shaped(flat: core.Array, like: ArrayRecord) -> ArrayRecord:
    shapes = {name: a.numpy().shape for name, a in like.items()}
    stops = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    parts = np.split(flat, stops[:-1])
    return ArrayRecord(
        {name: Array(part.reshape(shape)) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
    )
