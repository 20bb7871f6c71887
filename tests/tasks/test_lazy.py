"""Datasets that are fetched sample by sample, and transforms: the bits of tensors."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from fedstale.core import BadInput, Job, Local
from fedstale.engines import Serial
from fedstale.engines.auto import Auto
from fedstale.engines.batched.engine import Batched
from fedstale.engines.processes.pool import Pool
from fedstale.tasks.supervised import Supervised

LOCAL, SIZES = Local(0.1, steps=3, batch=8), (300, 5, 33)


def model():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def pairs(sizes=SIZES, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return [(torch.randn(k, 4, generator=rng), torch.randint(0, 3, (k,), generator=rng)) for k in sizes]


class Files(Dataset):
    """As from disk: numpy inputs and plain numbers, and a count of what was fetched."""

    def __init__(self, x, y):
        self.x, self.y, self.fetched = x.double().numpy(), y.tolist(), 0

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        self.fetched += 1
        return self.x[i], self.y[i]


class Noisy(Files):
    def __getitem__(self, i):
        return torch.as_tensor(self.x[i]).float() + torch.randn(4), self.y[i]


class Named(Files):
    def __getitem__(self, i):
        return {"input": self.x[i]}, self.y[i]


def subset(x, y):
    return Subset(TensorDataset(x.flip(0), y.flip(0)), list(range(len(y)))[::-1])


one_process = partial(Pool, workers=1)  # shares of several are for tests/engines


def reply(task, engine=Serial):
    made = engine(task, LOCAL)
    try:
        return made.train([Job(task.init(0), np.arange(task.n), 0, 1, LOCAL)])[0]
    finally:
        if isinstance(made, Pool):
            made.close()


@pytest.mark.parametrize("engine", [Serial, one_process], ids=["Serial", "Pool"])
@pytest.mark.parametrize("make", [Files, subset, TensorDataset])
def test_datasets_give_the_bits_of_tensors(make, engine):
    train, test = pairs(), pairs((3, 0, 260), seed=1)
    due = Supervised(model, train, test)
    task = Supervised(model, [make(*pair) for pair in train], [make(*pair) for pair in test])
    assert task.samples.tolist() == list(SIZES)
    got, right = reply(task, engine), reply(due)
    assert np.array_equal(got.updates, right.updates)
    assert np.array_equal(got.losses, right.losses)
    assert task.evaluate(task.init(0)) == due.evaluate(due.init(0))


def test_a_sample_is_fetched_when_a_batch_needs_it():
    data = [Files(*pair) for pair in pairs()]
    task = Supervised(model, data)
    before = [d.fetched for d in data]
    Serial(task, LOCAL).train([Job(task.init(0), np.array([2]), 0, 1, LOCAL)])
    assert [d.fetched - b for d, b in zip(data, before, strict=True)] == [0, 0, LOCAL.steps * LOCAL.batch]


def test_samples_of_a_dataset_may_have_named_inputs():
    data = pairs()
    due, task = (
        Supervised(lambda: nn.Linear(4, 3), clients) for clients in (data, [Named(*pair) for pair in data])
    )
    assert np.array_equal(reply(task).updates, reply(due).updates)


def test_what_a_dataset_draws_is_the_same_in_every_engine_and_time():
    task = Supervised(model, [Noisy(*pair) for pair in pairs()], pairs())
    before = torch.get_rng_state()
    one, score = reply(task).updates, task.evaluate(task.init(0))
    torch.manual_seed(5)
    assert np.array_equal(reply(task).updates, one)
    assert np.array_equal(reply(task, one_process).updates, one)
    assert task.evaluate(task.init(0)) == score
    torch.set_rng_state(before)
    assert not np.array_equal(reply(Supervised(model, pairs())).updates, one)


def test_batched_refuses_datasets_and_transforms_and_auto_does_not_try_it():
    lazy, moved = Supervised(model, [Files(*p) for p in pairs()]), Supervised(model, pairs(), transform=shifted)
    with pytest.raises(
        BadInput, match="engine 'batched' needs samples in memory, got datasets; use engine 'serial'"
    ):
        Batched(lazy, LOCAL)
    with pytest.raises(BadInput, match="engine 'batched' cannot apply a transform; use engine 'serial' or 'pool'"):
        Batched(moved, LOCAL)
    with Auto(lazy, LOCAL) as auto:
        assert auto.name != "batched"


@pytest.mark.parametrize(
    ("clients", "sentence"),
    [
        ([Files(*pairs()[0]), pairs()[0]], "one .x, y. pair per client, or one Dataset with a length, got Files"),
        ([pairs()[0][0]], "one Dataset with a length, got Tensor"),
        ([DataLoader(Files(*pairs()[0]))], "one Dataset with a length, got DataLoader: give its .dataset"),
        ([TensorDataset(pairs()[0][0])], r"a dataset must give pairs \(x, y\), got tuple"),
        ([Files(torch.empty(0, 4), torch.empty(0))], "every client must have a training sample"),
    ],
)
def test_what_is_no_dataset_of_pairs_is_refused(clients, sentence):
    with pytest.raises(BadInput, match=sentence):
        Supervised(model, clients)


def shifted(x, generator):
    return x + torch.randn(len(x), 1, generator=generator)


def nothing(x, generator):
    return x


def test_a_transform_is_seeded_and_only_for_training():
    due, task = Supervised(model, pairs(), pairs()), Supervised(model, pairs(), pairs(), transform=shifted)
    one = reply(task)
    assert np.array_equal(one.updates, reply(task, one_process).updates)
    assert np.array_equal(one.updates, reply(task).updates)
    assert not np.array_equal(one.updates, reply(due).updates)
    assert task.evaluate(task.init(0)) == due.evaluate(due.init(0))
    same = Supervised(model, pairs(), pairs(), transform=nothing)
    assert np.array_equal(reply(same).updates, reply(due).updates)


def test_a_transform_draws_anew_in_every_step():
    drawn = []

    def watch(x, generator):
        drawn.append(torch.rand(1, generator=generator).item())
        return x

    task = Supervised(model, pairs(), transform=watch)
    drawn.clear()  # it was tried
    Serial(task, LOCAL).train([Job(task.init(0), np.arange(2), 0, 1, LOCAL)])
    assert len(set(drawn)) == len(drawn) == 2 * LOCAL.steps
