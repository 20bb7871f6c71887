"""A Flower strategy object, for a ServerApp of your own.

    strategy = FedstaleStrategy(folder)                       # the folder with federation.toml and roster.json
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=20)

The clients run `fedstale.flower.client_app`. Rounds are played by fedstale's own loop, which resumes, keeps
deadlines and checks replies; Flower's hooks for single rounds are therefore not used.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Result, Strategy

from fedstale import core
from fedstale.core import require
from fedstale.flower.federation import settings
from fedstale.flower.federation.server.app import STATISTICS, Layout, record

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class FedstaleStrategy(Strategy):  # type: ignore[misc]  # flwr is not there where types are checked
    """A Flower strategy that runs the federation.toml in `folder`, with its estimator and memory."""

    def __init__(self, folder: Path | str) -> None:
        self.settings = settings.read(Path(folder))

    def start(
        self, grid: Any, initial_arrays: ArrayRecord, num_rounds: int = 3, timeout: float = 3600,
        train_config: ConfigRecord | None = None, evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:  # fmt: skip
        """Play the rounds after the last committed one up to `num_rounds`; `timeout` is the deadline of a round."""
        require(train_config is None and evaluate_config is None, "settings of clients are in federation.toml")
        how = self.settings.file.round.model_copy(update={"deadline": float(timeout)})
        file = self.settings.file.model_copy(update={"rounds": num_rounds, "round": how})
        flat, result = _flat(initial_arrays), Result(arrays=initial_arrays)
        chosen = self.settings._replace(file=file)
        for closed in record(chosen, grid, lambda seed: flat, _layout(initial_arrays)):
            t, loss = closed.line["round"], closed.line["train_loss"]
            result.arrays = _shaped(closed.state.checkpoint, initial_arrays)
            result.train_metrics_clientapp[t] = MetricRecord({} if loss is None else {"train_loss": loss})
            if evaluate_fn and (scores := evaluate_fn(t, result.arrays)) is not None:
                result.evaluate_metrics_serverapp[t] = scores
        return result

    def summary(self) -> None:
        """Print nothing: the settings are in federation.toml."""

    def _unused(self, *_: Any) -> Any:
        raise NotImplementedError("start() plays the rounds; evaluate with its evaluate_fn")

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _unused


def _flat(arrays: ArrayRecord) -> core.Array | tuple[core.Array, core.Floats]:
    """The parameters, and the running statistics of normalisation layers if there are any."""
    parts = {name: a.numpy() for name, a in arrays.items()}
    other = {str(p.dtype) for name, p in parts.items() if not _averaged(name)} - {"float32"}
    require(not other, f"a model's parameters must be float32, got {sorted(other)}")
    params = np.concatenate([p.ravel() for name, p in parts.items() if not _averaged(name)])
    buffers = [p.ravel().astype(np.float64) for name, p in parts.items() if _averaged(name)]
    return (params, np.concatenate(buffers)) if buffers else params


def _layout(arrays: ArrayRecord) -> Layout:
    """Names, shapes and types of the parameters and of the running statistics, in the order of `_flat`."""
    found: Layout = {"parameters": [], "buffers": []}
    for name, a in arrays.items():
        piece = {"name": name, "shape": list(a.shape), "dtype": str(a.dtype)}
        found["buffers" if _averaged(name) else "parameters"].append(piece)
    return found


def _averaged(name: str) -> bool:
    return name.rpartition(".")[2] in STATISTICS


def _shaped(now: core.Checkpoint, like: ArrayRecord) -> ArrayRecord:
    """Parameters and buffers of a checkpoint as arrays of the model."""
    vectors, starts, shaped = {False: now.params, True: now.buffers}, {False: 0, True: 0}, {}
    for name, a in like.items():
        old, kind = a.numpy(), _averaged(name)
        part = np.asarray(vectors[kind])[starts[kind] : starts[kind] + old.size]
        starts[kind] += old.size
        shaped[name] = Array(
            (part if old.dtype.kind == "f" else np.rint(part)).astype(old.dtype).reshape(old.shape)
        )
    return ArrayRecord(shaped)
