import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedstale.core import Job, Local
from fedstale.engines import Serial, make
from fedstale.engines.auto import Auto, fastest
from fedstale.engines.batched.engine import Batched
from fedstale.engines.processes.pool import Pool
from fedstale.tasks.supervised import Supervised
from fedstale.testing import check_engine
from tests.engines.slow_tasks import Slow
from tests.engines.tasks_for_engines import vectors

LOCAL = Local(0.05, steps=2, batch=16)


def test_small_model_is_batched_and_equals_the_reference() -> None:
    engine = make("auto", vectors(), LOCAL)
    assert isinstance(engine, Auto)
    assert engine.name in ("serial", "batched")  # never a pool: a round takes a few milliseconds
    check_engine(engine, rounds=3, tolerance=1e-4)


def test_note_says_what_was_measured() -> None:
    with Auto(vectors(), LOCAL) as engine:
        assert engine.note.startswith(f"engine {engine.name}: a client takes serial ")
        assert "batched" in engine.note


@pytest.mark.parametrize(
    ("seconds", "name", "kind"),
    [
        ({"serial": 3.0, "batched": 2.0, "pool": 1.0}, "pool", Pool),
        ({"serial": 3.0, "batched": 0.5, "pool": 1.0}, "batched", Batched),
        ({"serial": 0.002, "batched": 0.003, "pool": 0.001}, "serial", Serial),  # not worth a start
    ],
)
def test_the_fastest_is_taken(seconds: dict[str, float], name: str, kind: type) -> None:
    chosen, engine = fastest(seconds, vectors(), LOCAL)
    assert (chosen, type(engine)) == (name, kind)
    if isinstance(engine, Pool):
        engine.close()


def test_task_that_cannot_be_pickled_gets_no_pool() -> None:
    name, _ = fastest({"serial": 3.0, "batched": 2.0, "pool": 1.0}, vectors(lambda: nn.Linear(8, 3)), LOCAL)
    assert name == "batched"


def test_model_that_cannot_be_batched_has_two_candidates() -> None:
    engine = Auto(vectors(dropout), LOCAL)
    assert engine.name == "serial"
    assert "batched" not in engine.note


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 3), nn.Dropout(0.5))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0])  # type: ignore[no-any-return]


def test_the_trial_of_an_lstm_is_silent() -> None:
    """torch warns that batching it is slow; warnings are errors here."""
    clients = [(torch.zeros(5, 4, 3), torch.zeros(5, 4, dtype=torch.long))] * 2
    engine = Auto(Supervised(Recurrent, clients), Local(0.1, steps=1))
    assert "batched" in engine.note
    assert repr(engine) == f"Auto(Supervised(n=2, d=154), {engine.name!r})"


def test_task_without_torch_goes_to_a_pool_if_it_is_slow() -> None:
    task = Slow(0.05)
    with make("auto", task, LOCAL) as engine:  # type: ignore[attr-defined]
        job = Job(task.init(0), np.arange(6), 0, 1, LOCAL)
        np.testing.assert_array_equal(
            engine.train([job])[0].updates, Serial(Slow(0.0), LOCAL).train([job])[0].updates
        )
