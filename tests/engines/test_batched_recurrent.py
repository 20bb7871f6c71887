"""Small GRUs and LSTMs in compiled loops, against the reference."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedstale.core import Job, Local
from fedstale.core.rng import stream
from fedstale.engines.batched.compiled import Compiled
from fedstale.engines.batched.engine import Batched
from fedstale.engines.kernels import load
from fedstale.tasks.models import GRU
from fedstale.tasks.supervised import Supervised
from fedstale.testing import check_engine

pytestmark = pytest.mark.skipif(load("recurrent") is None, reason="numba is not installed")
SYMBOLS, STEPS = 7, 5
LOCAL = Local(0.3, steps=3, batch=18, momentum=0.5)


class Reads(nn.Module):
    """As people write it; `skips` adds what the compiled loops do not know."""

    def __init__(self, kind: type[nn.RNNBase], layers: int, every: bool, first: bool = True, skips: bool = False):
        super().__init__()
        self.embed, self.out = nn.Embedding(SYMBOLS, 3), nn.Linear(9, SYMBOLS)
        self.cells = kind(3, 9, layers, batch_first=first)
        self.every, self.first, self.skips = every, first, skips

    def forward(self, x: Tensor) -> Tensor:
        e = self.embed(x)
        states = self.cells(e)[0] if self.first else self.cells(e.transpose(0, 1))[0].transpose(0, 1)
        states = states.mean(1, keepdim=True) + states if self.skips else states
        scores: Tensor = self.out(states if self.every else states[:, -1])
        return scores


def task(make: partial[nn.Module], every: bool = False, sizes: tuple[int, ...] = (3, 20, 40)) -> Supervised:
    rng, data = stream(0, "texts"), []
    for size in sizes:
        y = rng.integers(0, SYMBOLS, (size, STEPS) if every else size)
        data.append((torch.from_numpy(rng.integers(0, SYMBOLS, (size, STEPS))), torch.from_numpy(y)))
    return Supervised(make, data, ridge=0.1)


@pytest.mark.parametrize("every", [False, True], ids=["last step", "every step"])
@pytest.mark.parametrize(("kind", "layers"), [(nn.GRU, 1), (nn.GRU, 2), (nn.LSTM, 2)])
def test_networks_equal_the_reference(kind: type[nn.RNNBase], layers: int, every: bool) -> None:
    engine = Batched(task(partial(Reads, kind, layers, every, first=layers == 1), every), LOCAL)
    assert isinstance(engine._kernel, Compiled)
    check_engine(engine, rounds=2, tolerance=1e-4)


def test_our_own_gru_equals_the_reference() -> None:
    engine = Batched(task(partial(GRU(4, 6).build, (STEPS,), SYMBOLS)), LOCAL)
    assert isinstance(engine._kernel, Compiled)
    check_engine(engine, rounds=2, tolerance=1e-4)


def test_a_row_has_the_same_bits_in_any_company() -> None:
    engine = Batched(task(partial(Reads, nn.GRU, 1, False)), LOCAL)
    params = engine.task.init(0)
    whole, alone = (engine.train([Job(params, np.array(who), 0, 1, LOCAL)])[0] for who in ([0, 1, 2], [1]))
    np.testing.assert_array_equal(whole.updates[1], alone.updates[0])


@pytest.mark.parametrize(
    "make",
    [
        partial(Reads, nn.GRU, 1, False, skips=True),
        partial(nn.Sequential, nn.Embedding(SYMBOLS, 3), nn.Flatten(), nn.Linear(15, SYMBOLS)),
    ],
    ids=["another function of the same layers", "not recurrent"],
)
def test_other_models_are_not_taken_for_recurrent_ones(make: partial[nn.Module]) -> None:
    assert task(make).gates is None


def test_padding_that_the_model_skips_is_noticed() -> None:
    class Until(Reads):
        def forward(self, x: Tensor) -> Tensor:
            last = (x != 0).sum(1).clamp(1, STEPS) - 1
            scores: Tensor = self.out(self.cells(self.embed(x))[0][torch.arange(len(x)), last])
            return scores

    rows = torch.randint(1, SYMBOLS, (9, STEPS), generator=torch.Generator().manual_seed(0))
    assert Supervised(partial(Until, nn.GRU, 1, False), [(rows, rows[:, 0])]).gates is None
