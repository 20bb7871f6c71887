"""Scores of every client, from the answers of a model to samples that lie one client after the other."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedstale.core import Array, BadInput, Floats, Ids, shown
from fedstale.tasks.losses import outputs_of
from fedstale.tasks.split import Lazy, Split, means

PerSample = Callable[[Any, Tensor], Tensor]  # answer, targets (b, …) -> (b,)
Metric = Callable[[Tensor, Tensor], Any]  # all outputs and targets of a client -> a number, or one per sample


class Scored(NamedTuple):
    """Samples that an evaluation scores, client by client; a central test set is that of one client."""

    prefix: str  # of the names of its scores
    split: Split | Lazy
    weights: Array | Floats  # how much each of its clients counts
    of_clients: bool = True  # whether its clients are those that train


def average(values: Floats, sizes: Ids, weights: Array | Floats) -> float:
    """The weighted mean over the clients that have samples: nan if none has."""
    known = sizes > 0
    a = weights[known].astype(np.float64)
    return float(a @ values[known] / a.sum()) if a.sum() > 0 else float("nan")


def client_scores(
    answers: Iterable[tuple[Any, Tensor]],
    offsets: Ids,
    per_sample: Mapping[str, PerSample],
    metrics: Mapping[str, Metric],
) -> dict[str, Floats]:
    """(n,) by name: the means of values per sample, and metrics of a client's whole set; nan without samples."""
    n = len(offsets) - 1
    columns: dict[str, list[Tensor]] = {name: [] for name in per_sample}
    found = {name: np.full(n, np.nan) for name in metrics}

    def watched() -> Iterator[tuple[Tensor, Tensor]]:
        for said, y in answers:
            for name, values in per_sample.items():
                columns[name].append(values(said, y).cpu())
            yield outputs_of(said), y

    if not metrics:
        deque(watched(), maxlen=0)  # no outputs are kept
    for client, outputs, y in by_client(watched(), offsets) if metrics else ():
        for name, metric in metrics.items():
            found[name][client] = _mean(name, metric(outputs, y), len(y))
    return {name: means(torch.cat(values).double().numpy(), offsets) for name, values in columns.items()} | found


def _mean(name: str, value: Any, size: int) -> Any:
    """A metric's number, or the mean of its numbers, one per sample."""
    try:
        values = np.asarray("nothing" if value is None else value, np.float64)
        ok = values.size == 1 or values.shape[:1] == (size,)
    except (TypeError, ValueError):
        ok = False
    if not ok:
        what = f"metric {name!r} must return a number, or one for each of {size} samples"
        raise BadInput(f"{what}, got {shown(value)}")
    return np.mean(values)


def by_client(batches: Iterable[tuple[Tensor, Tensor]], offsets: Ids) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Number, outputs and targets of each client with samples, as soon as its last batch is there."""
    held: list[tuple[Tensor, Tensor]] = []
    first, client, n = 0, 0, len(offsets) - 1  # the row where what is held begins; the next client
    for outputs, y in batches:
        held.append((outputs.cpu(), y.cpu()))
        if client < n and first + sum(len(t) for _, t in held) >= offsets[client + 1]:
            every, targets = (torch.cat(parts) for parts in zip(*held, strict=True))
            while client < n and offsets[client + 1] <= first + len(targets):
                rows = slice(offsets[client] - first, offsets[client + 1] - first)
                if rows.start < rows.stop:
                    yield client, every[rows], targets[rows]
                client += 1
            done = int(offsets[client]) - first
            held, first = [(every[done:], targets[done:])], first + done
