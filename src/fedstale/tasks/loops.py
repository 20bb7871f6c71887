"""A training loop of the user's own in the place of ours: what it is given, and what is read from it afterwards.

def train(model, data, context):
    optimizer = torch.optim.SGD(model.parameters(), context.rate)
    for x, y in data.batches():
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedstale.core import Array, BadInput, Job, Local, require, shown, stream
from fedstale.tasks.flat import Slot, draw
from fedstale.tasks.split import Lazy, Split, mapped

TENSOR = "torch.Tensor"  # the only key of a dict that stands for a tensor
ALLOWED = "tensors, arrays, numbers, texts, tuples, lists and dicts"


def stored(value: Any, where: str = "context.state") -> Any:
    """A copy of a tree, with tensors as arrays; refuses what cannot be stored."""
    if isinstance(value, Tensor):
        return {TENSOR: _array(value, where)}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.copy()
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        _check_keys([*value], where)
        return {key: stored(inner, f"{where}[{key!r}]") for key, inner in value.items()}
    require(isinstance(value, list | tuple), f"a client can keep {ALLOWED}, got {type(value).__name__} in {where}")
    items = [stored(inner, f"{where}[{k}]") for k, inner in enumerate(value)]
    return items if isinstance(value, list) else tuple(items)


def restored(value: Any) -> Any:
    """The tree that `stored` was given; a copy, with its tensors on the CPU."""
    if isinstance(value, dict):
        if [*value] == [TENSOR]:
            return torch.from_numpy(value[TENSOR].copy())
        return {key: restored(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(restored, value))
    return value.copy() if isinstance(value, np.ndarray) else value


def _array(tensor: Tensor, where: str) -> Any:
    try:
        return tensor.detach().cpu().numpy().copy()
    except (TypeError, RuntimeError) as error:  # a type that numpy lacks, or a sparse tensor
        raise BadInput(f"a client can keep tensors that numpy knows, got {tensor.dtype} in {where}") from error


def _check_keys(keys: list[Any], where: str) -> None:
    """Refuse keys that would not be told apart in a file."""
    odd = [key for key in keys if not isinstance(key, int | str) or "/" in str(key)]
    require(not odd, f"keys must be whole numbers, or texts without a slash, got {odd[:1]} in {where}")
    require(len({*map(str, keys)}) == len(keys), f"keys must differ as texts, got {keys} in {where}")


class Context(NamedTuple):
    """What a training loop knows besides the model and the client's samples."""

    round: int
    client: int
    rate: float  # the learning rate of this round
    batch: int  # samples of a step
    generator: torch.Generator  # seeded by the run, the round and the client, as is `rng`
    rng: np.random.Generator
    state: dict[Any, Any]  # what the client has kept from earlier rounds: change it in place
    draws: np.random.Generator  # of the batches: the stream that our own training loop uses

    @classmethod
    def of(cls, job: Job, client: int, local: Local) -> "Context":
        """That of one client of a job."""
        rng = stream(job.seed, "loop", job.t, client)
        draws = stream(job.seed, "local", job.t, client)
        generator = torch.Generator().manual_seed(draw(rng))
        before = (job.states or {}).get(client) or {}
        state = restored(before.get("loop", {}))
        return cls(job.t, client, local.rate(job.t), local.batch, generator, rng, state, draws)


class ClientData(Dataset[tuple[Any, Tensor]]):
    """The training samples of one client: a map-style torch Dataset of pairs (x, y)."""

    def __init__(
        self, split: Split | Lazy, client: int, batches: Callable[[], Iterable[tuple[Any, Tensor]]]
    ) -> None:
        self._split, self._rows = split, range(*split.offsets[client : client + 2].tolist())
        self._batches = batches

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        x, y = self._split.span(self._rows[index], self._rows[index] + 1)
        return mapped(lambda v: v[0], x), y[0]

    def batches(self) -> Iterator[tuple[Any, Tensor]]:
        """The shuffled batches of this round, the same that our own training loop would use, transformed as there.

        As many as the settings say: `steps` or `epochs`, of `batch` samples.
        """
        return iter(self._batches())


def started(loss: object) -> float | None:
    """The loss at the start that a training loop returned, if it did."""
    number = np.asarray(loss.detach().cpu() if isinstance(loss, Tensor) else loss)
    ok = loss is None or (number.shape == () and number.dtype.kind in "iuf")
    if not ok:
        raise BadInput(f"train must return the loss at the start, a number, or nothing, got {shown(loss)}")
    return None if loss is None else float(number)


def read(module: nn.Module, slots: Sequence[Slot]) -> Array:
    """The parameters after a training loop; refuses a module in which they are not there any more."""
    held = dict(module.named_parameters())
    other = [slot.name for slot in slots if slot.name not in held or tuple(held[slot.name].shape) != slot.shape]
    told = ", ".join(other)
    require(not other, f"train must keep the model's parameters and their shapes, got others for {told}")
    flat = torch.cat([held[slot.name].detach().flatten().cpu().float() for slot in slots])
    values: Array = flat.numpy()
    return values
