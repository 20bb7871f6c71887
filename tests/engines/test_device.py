"""Training on a GPU, as far as a machine without one can tell.

Tensors on torch's device `meta` have no values: every copy to the CPU and every `.item()` raises, as it would make
a GPU wait. On the CPU the same code must give the bits of a loop over `task.gradient`.
"""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedstale as fs
from fedstale.core import Job
from fedstale.engines import device
from fedstale.engines.serial import Serial
from fedstale.tasks import flat

META = torch.device("meta")
IDS = np.arange(3)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def drops() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


def noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + torch.randn(x.shape, generator=generator, device=generator.device)


def supervised(model=mlp, **settings) -> fs.Supervised:
    rng = np.random.default_rng(1)
    clients = [(rng.standard_normal((20, 6), np.float32), rng.integers(0, 3, 20)) for _ in range(3)]
    return fs.Supervised(model, clients, test=clients, **settings)


def on_meta(task: fs.Supervised) -> fs.Supervised:
    """The task as it would be on a GPU that nobody may wait for."""
    task.device, task.train = META, task.train.to(META)
    return task


def ordered(task: fs.Supervised, local: fs.Local, **more) -> Job:
    return Job(task.init(0), IDS, seed=0, t=1, local=local, **more)


CASES = {
    "sgd": (mlp, {}, fs.Local(lr=0.1, steps=3, batch=5)),
    "ridge": (mlp, {"ridge": 0.1}, fs.Local(lr=0.1, steps=3, batch=5)),
    "prox": (mlp, {}, fs.Local(lr=0.1, steps=3, batch=5, prox=0.5)),
    "momentum": (mlp, {}, fs.Local(lr=0.1, steps=3, batch=5, momentum=0.9, weight_decay=0.01)),
    "clipped": (mlp, {}, fs.Local(lr=0.1, steps=3, batch=5, clip_norm=0.1)),
    "adam": (mlp, {}, fs.Local(lr=0.1, steps=3, batch=5, optimizer="adam")),
    "by step": (mlp, {}, fs.Local(lr=0.1, steps=3, batch=5, schedule=fs.schedules.InverseSteps(1.0, 3))),
    "dropout": (drops, {}, fs.Local(lr=0.1, steps=3, batch=5)),
    "personal": (drops, {"personal": ["3"]}, fs.Local(lr=0.1, steps=3, batch=5, prox=0.5)),
}


@pytest.mark.parametrize(("model", "settings", "local"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("drifts", [False, True], ids=["", "drift"])
def test_a_model_that_stays_on_its_device_has_the_bits_of_one_that_is_copied(
    monkeypatch, model, settings, local, drifts
):
    task = supervised(model, **settings)
    drift = np.random.default_rng(2).standard_normal((3, task.d), np.float32) if drifts else None
    job = ordered(task, local, drift=drift)
    got, reference = Serial(task, local).train([job])[0], Serial(supervised(model, **settings), local)
    monkeypatch.setitem(vars(reference), "_on_device", None)
    due = reference.train([job])[0]
    np.testing.assert_array_equal(got.updates, due.updates)
    np.testing.assert_array_equal(got.losses, due.losses)
    if due.buffers is not None:
        np.testing.assert_array_equal(got.buffers, due.buffers)


class Moves:
    """Counts what goes to the device and what comes back, in place of both."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.up: list[int] = []
        self.down: list[int] = []
        load = flat.Flat.load

        def loaded(own: flat.Flat, params: np.ndarray) -> None:
            self.up.append(len(params))
            load(own, params)

        def cpu(tensor: Tensor) -> Tensor:
            if tensor.device == META:
                self.down.append(tensor.numel())
            return torch.zeros(tensor.shape, dtype=tensor.dtype)

        monkeypatch.setattr(flat.Flat, "load", loaded)
        monkeypatch.setattr(Tensor, "cpu", cpu)


@pytest.mark.parametrize("name", ["sgd", "ridge", "prox", "momentum", "clipped", "adam", "by step"])
def test_the_model_travels_once_each_way_for_a_client_and_a_round(monkeypatch, name):
    model, settings, local = CASES[name]
    task = supervised(model, **settings)
    job, moves = ordered(task, local), Moves(monkeypatch)
    Serial(on_meta(task), local).train([job])
    assert moves.up == [task.d] * 3
    assert moves.down == [task.d + (2 if name == "ridge" else 1)] * 3  # with the loss


def test_a_gradient_by_hand_would_be_noticed_on_the_device(monkeypatch):
    task = supervised()
    job, moves = ordered(task, CASES["sgd"][2]), Moves(monkeypatch)
    there = Serial(on_meta(task), CASES["sgd"][2])
    monkeypatch.setitem(vars(there), "_on_device", None)
    with pytest.raises(RuntimeError, match="item"):  # the reference waits for the loss of every step
        there.train([job])
    assert moves.up == [task.d]


def test_a_task_with_a_gradient_of_its_own_is_trained_by_it():
    class Doubled(fs.Supervised):
        def gradient(self, params, client, batch):
            loss, gradient = super().gradient(params, client, batch)
            return loss, 2 * gradient

    rng = np.random.default_rng(1)
    task = on_meta(Doubled(mlp, [(rng.standard_normal((20, 6), np.float32), rng.integers(0, 3, 20))]))
    assert device.steps_of(task) is None
    assert device.steps_of(on_meta(supervised()))


def test_samples_of_datasets_are_fetched_by_numbers_that_stay_on_the_cpu():
    rng = np.random.default_rng(1)
    x, y = torch.from_numpy(rng.standard_normal((20, 6), np.float32)), torch.from_numpy(rng.integers(0, 3, 20))
    task = fs.Supervised(mlp, [torch.utils.data.TensorDataset(x, y)])
    task.device = META
    batch = next(task.batches(0, fs.Local(lr=0.1, steps=1, batch=5), rng))
    assert batch.rows.device == flat.CPU


def test_scores_come_back_from_the_device_once(monkeypatch):
    task = supervised()
    params, moves = task.init(0), Moves(monkeypatch)
    task.scored[0] = task.scored[0]._replace(split=task.test.to(META))
    on_meta(task).test_scores(params)
    assert moves.down == [60, 60]  # accuracy and loss of all test samples


def test_a_transform_draws_on_the_device_of_the_samples():
    seen = []

    def told(x, generator):
        seen.append(generator.device)
        return noisy(x, generator)

    task = supervised(transform=told)
    Serial(task, fs.Local(lr=0.1, steps=1)).train([ordered(task, fs.Local(lr=0.1, steps=1))])
    assert {*seen} == {flat.CPU}


def test_bfloat16_computes_the_products_of_training_and_nothing_else():
    seen = []

    class Watched(nn.Linear):
        def forward(self, x):
            out = super().forward(x)
            seen.append((self.training, out.dtype))
            return out

    task, local = supervised(lambda: Watched(6, 3), precision="bfloat16"), fs.Local(lr=0.1, steps=2, batch=5)
    seen.clear()
    updates = Serial(task, local).train([ordered(task, local)])[0].updates
    task.evaluate(task.init(0))
    assert {*seen} == {(True, torch.bfloat16), (False, torch.float32)}
    plain = supervised(lambda: nn.Linear(6, 3))
    due = Serial(plain, local).train([ordered(plain, local)])[0].updates
    assert updates.dtype == np.float32
    assert 0 < np.abs(updates - due).max() < 0.02


def test_precision_is_refused_where_it_would_not_be_used():
    with pytest.raises(fs.BadInput, match="precision must be 'float32' or 'bfloat16', got 'float16'"):
        supervised(precision="float16")
    with pytest.raises(fs.BadInput, match="'batched' computes in float32, got precision 'bfloat16'"):
        fs.engine("batched", supervised(precision="bfloat16"), fs.Local(lr=0.1))
