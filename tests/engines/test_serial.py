from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fedstale.core import Array, BadInput, Job, Local
from fedstale.engines import Serial
from fedstale.engines.serial import answer
from fedstale.tasks import local as training
from fedstale.tasks.losses import cross_entropy
from fedstale.tasks.quadratic import Quadratic
from fedstale.tasks.supervised import Supervised
from tests.engines.tasks_for_engines import vectors

LOCAL = Local(0.05, steps=2, batch=16)


class Idle(Quadratic):
    """Client 1 has no batches."""

    def batches(self, client: int, local: Local, rng: np.random.Generator) -> Iterator[Array]:
        return iter(()) if client == 1 else super().batches(client, local, rng)


@pytest.mark.parametrize("method", ["train", "losses"])
def test_client_without_batches_is_refused(method: str) -> None:
    engine = Serial(Idle(np.zeros((3, 2))), LOCAL)
    job = Job(np.ones(2, np.float32), np.array([0, 1]), 0, 1, LOCAL)
    with pytest.raises(BadInput, match="must have a batch, got none for client 1"):
        engine.losses(job) if method == "losses" else engine.train([job])
    np.testing.assert_array_equal(engine.losses(job._replace(clients=np.array([0, 2]))), [1, 1])


@pytest.mark.parametrize(("small", "threads"), [(1 << 16, 1), (1, 2)])
def test_training_uses_one_thread_and_evaluations_of_small_models_too(
    small: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one would wait for a core on a busy machine, in every one of many tiny operations."""
    monkeypatch.setattr(training, "SMALL", small)
    split, before, used = vectors().train, torch.get_num_threads(), set()

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        used.add(torch.get_num_threads())
        return cross_entropy(outputs, targets)

    torch.set_num_threads(2)
    try:
        task = Supervised(lambda: torch.nn.Linear(8, 3), split, split, loss=loss)
        job = Job(task.init(0), np.arange(6), 0, 1, LOCAL)
        for work, due in (
            (lambda: Serial(task, LOCAL).train([job]), 1), (lambda: Serial(task, LOCAL).losses(job), 1),
            (lambda: task.evaluate(task.init(0)), threads), (lambda: task.per_client(task.init(0)), threads),
            (lambda: answer(task, job, True), threads), (lambda: answer(task, job, False), threads),
        ):  # fmt: skip
            used.clear()
            work()
            assert used == {due}
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_only_settings_of_training_are_taken_as_such() -> None:
    with pytest.raises(BadInput, match=r"local must be Local\(\), got 0.1"):
        Serial(Idle(np.zeros((3, 2))), 0.1)  # type: ignore[arg-type]
