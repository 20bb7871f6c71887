"""Small CNNs in compiled loops, against the reference."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from fedstale.core import Job, Local
from fedstale.core.rng import stream
from fedstale.core.schedules import UniformSteps
from fedstale.engines import Serial
from fedstale.engines.batched import engine as batched
from fedstale.engines.batched.compiled import Compiled
from fedstale.engines.batched.engine import Batched
from fedstale.engines.batched.functional import Functional
from fedstale.engines.kernels import load
from fedstale.participation.bernoulli import Bernoulli
from fedstale.simulate import simulate
from fedstale.strategies.fedstale import FedStale
from fedstale.tasks.supervised import Supervised
from fedstale.testing import check_engine
from tests.engines.tasks_for_engines import images

pytestmark = pytest.mark.skipif(load("convolutional") is None, reason="numba is not installed")
LOCAL = Local(0.05, steps=3, batch=16)


def conv(
    i: int, o: int, kernel: int | tuple[int, int], padding: int | tuple[int, int], pool: bool = True
) -> list[nn.Module]:
    return [nn.Conv2d(i, o, kernel, padding=padding), nn.ReLU(), *([nn.MaxPool2d(2)] if pool else [])]


class Network(NamedTuple):
    shape: tuple[int, int, int]
    make: Callable[[], nn.Module]


NETWORKS = {
    "3 × 3, padded": Network(
        (1, 8, 8), lambda: nn.Sequential(*conv(1, 4, 3, 1), *conv(4, 6, 3, 1), nn.Flatten(), nn.Linear(24, 3))
    ),
    "5 × 5, no padding, hidden layers": Network(
        (3, 12, 12),
        lambda: nn.Sequential(*conv(3, 5, 5, 0), nn.Flatten(), nn.Linear(80, 7), nn.ReLU(), nn.Linear(7, 3)),
    ),
    "odd sizes, pooling leaves positions out": Network(
        (2, 9, 7), lambda: nn.Sequential(*conv(2, 3, 3, 1), *conv(3, 2, 2, 1), nn.Flatten(), nn.Linear(8, 3))
    ),
    "not all pooled, padding beyond the kernel": Network(
        (1, 5, 6),
        lambda: nn.Sequential(
            *conv(1, 2, 3, 3, pool=False), *conv(2, 9, (1, 3), (0, 1)), nn.Flatten(), nn.Linear(180, 3)
        ),
    ),
}


def network(name: str, sizes: tuple[int, ...] = (3, 20, 40), ridge: float = 0.0) -> Supervised:
    shape, make = NETWORKS[name]
    rng = stream(0, "images")
    data = [(rng.standard_normal((s, *shape), np.float32), rng.integers(0, 3, s)) for s in sizes]
    return Supervised(make, data, ridge=ridge)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_equal_the_reference(name: str) -> None:
    engine = Batched(network(name, ridge=0.1), LOCAL)
    assert isinstance(engine._kernel, Compiled)
    check_engine(engine, rounds=2, tolerance=1e-4)


def test_batches_of_more_samples_than_the_cache_holds_equal_the_reference() -> None:
    check_engine(Batched(network("3 × 3, padded", (10, 49, 130)), Local(0.05, steps=2, batch=120)), tolerance=1e-4)


@pytest.mark.parametrize(
    "local",
    [
        replace(LOCAL, momentum=0.9),
        replace(LOCAL, prox=0.3, weight_decay=0.1),
        Local(0.05, epochs=2, batch=7, drop_last=True),
        Local(0.05, batch=16, work=UniformSteps(1, 4)),
    ],
    ids=["momentum", "prox and weight decay", "epochs", "uneven work"],
)  # fmt: skip
@pytest.mark.parametrize("drifts", [False, True])
def test_every_setting_of_local_training_equals_the_reference(local: Local, drifts: bool) -> None:
    task = network("3 × 3, padded", (8, 20, 40), ridge=0.1)
    drift = stream(0, "drift").standard_normal((3, task.d), np.float32) if drifts else None
    jobs = [Job(task.init(s), np.arange(3), s, 2, local, drift) for s in (0, 1)]
    for reply, due in zip(Batched(task, LOCAL).train(jobs), Serial(task, LOCAL).train(jobs), strict=True):
        np.testing.assert_allclose(reply.updates, due.updates, rtol=0, atol=2e-6)
        np.testing.assert_allclose(reply.losses, due.losses, rtol=1e-5)


def test_the_first_of_equal_positions_gets_the_gradient() -> None:
    shape, make = NETWORKS["3 × 3, padded"]
    task = Supervised(make, [(np.ones((4, *shape), np.float32), np.arange(4) % 3)])
    check_engine(Batched(task, LOCAL), rounds=2, tolerance=1e-4)


def test_fifty_rounds_end_where_the_reference_ends() -> None:
    task, ends = images(), []
    for engine in (Serial(task, LOCAL), Batched(task, LOCAL)):
        *_, last = simulate(engine, FedStale(0.5), Bernoulli(0.5), rounds=50, seed=3)
        ends.append(last.params)
    assert np.abs(ends[0] - ends[1]).max() <= 1e-5 * np.abs(ends[0]).max()


def test_numbers_do_not_depend_on_threads() -> None:
    task = images()
    jobs = [Job(task.init(s), np.arange(6), s, 1, LOCAL) for s in range(3)]
    before, replies = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            replies.append(Batched(task, LOCAL).train(jobs))
    finally:
        torch.set_num_threads(before)
    for one, three in zip(*replies, strict=True):
        np.testing.assert_array_equal(one.updates, three.updates)


def test_networks_do_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "load", lambda name: None)
    assert isinstance(Batched(images(), LOCAL)._kernel, Functional)
