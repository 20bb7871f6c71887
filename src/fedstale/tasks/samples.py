"""The samples that a task is given, as splits: those to train on and all those that an evaluation scores."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from fedstale.core import Array, BadInput, known, normalised, require
from fedstale.tasks.evaluation import Scored
from fedstale.tasks.split import WEIGHTS, Data, InputData, Lazy, MapStyle, Split, Weighting, even, is_dataset

Samples = Split | Lazy | Sequence[tuple[InputData, Data]] | Sequence[MapStyle]


def split_of(samples: Samples, device: torch.device, what: str = "train") -> Split | Lazy:
    """The samples of all clients, on a device; `what` they are is for sentences."""
    if isinstance(samples, Split):
        return Split.of(*samples).to(device)
    if isinstance(samples, Lazy):
        return samples.to(device)
    if len(samples) and all(map(is_dataset, samples)):
        return Lazy(tuple(samples), np.cumsum([0, *map(len, samples)]), device)
    try:
        return Split.joined(samples).to(device)  # type: ignore[arg-type]
    except BadInput as error:
        raise BadInput(f"{what}: {error}") from None


@runtime_checkable
class OfClient(Protocol):
    """A dataset that knows the name of its client, as those of `from_hf` do; empty if it has none."""

    @property
    def client_name(self) -> str: ...


def client_names(samples: Samples) -> tuple[str, ...]:
    """The names that the datasets of the clients know; none if one has none."""
    if isinstance(samples, Split | Lazy):
        return ()
    names = tuple(x.client_name if isinstance(x, OfClient) else "" for x in samples)
    return names if all(names) else ()


def of_clients(what: str, samples: Samples | None, n: int, device: torch.device) -> Split | Lazy:
    """Samples of the n clients that train; no rows for each of them if none are given."""
    if samples is None:
        return Split(torch.empty(0), torch.empty(0), np.zeros(n + 1, np.int64))
    split = split_of(samples, device, what)
    require(len(split.sizes) == n, f"{what} must have {n} clients, got {len(split.sizes)}")
    return split


def central(pair: tuple[InputData, Data] | MapStyle, device: torch.device) -> Scored:
    """One test set for all clients."""
    ok = is_dataset(pair) or (isinstance(pair, tuple | list) and len(pair) == 2)
    require(ok, f"central_test must be one pair (x, y) or one Dataset, got {type(pair).__name__}")
    return Scored("", split_of([pair], device, "central_test"), np.ones(1), False)


def validation_of(samples: Samples, weights: Array, device: torch.device) -> Scored:
    """Samples of the clients that train, which count as these do."""
    return Scored("validation_", of_clients("validation", samples, len(weights), device), weights)


def strangers(samples: Samples, weights: npt.ArrayLike | Weighting, device: torch.device) -> Scored:
    """Samples of clients that never train: they count alike, unless there is a rule for the weights."""
    others = split_of(samples, device, "held_out")
    a = normalised((weights if callable(weights) else even)(others.sizes), len(others.sizes))
    return Scored("held_out_", others, a, False)


def weighting(weights: npt.ArrayLike | Weighting | str) -> npt.ArrayLike | Weighting:
    """Weights, or the rule with this name."""
    return WEIGHTS[known(weights, WEIGHTS, "weights")] if isinstance(weights, str) else weights
