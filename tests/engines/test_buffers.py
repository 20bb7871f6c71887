"""Models with BatchNorm beside loops in plain PyTorch: the same bits, and buffers that are only ever averaged."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedstale as fs
from fedstale.core import BadInput, Floats, Job, Local, Reply
from fedstale.core.rng import stream
from fedstale.engines import Serial
from fedstale.engines.processes.pool import Pool
from fedstale.simulate import simulate
from fedstale.tasks.local import one_thread
from fedstale.tasks.supervised import Supervised
from fedstale.testing import check_engine

SIZES = (20, 7, 33)
ONE = float(np.float32(1 / 3))  # the weight of each
PROTOCOL = Local(0.1, epochs=2, batch=8, drop_last=True, momentum=0.9, weight_decay=5e-4)
FEW = Local(0.05, steps=2, batch=6)


def network() -> nn.Module:
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3), nn.BatchNorm1d(3)]
    return nn.Sequential(*layers)


def samples(sizes: tuple[int, ...] = SIZES) -> list[tuple[Any, Any]]:
    rng = stream(0, "samples")
    return [(rng.standard_normal((m, 1, 4, 4)).astype(np.float32), rng.integers(3, size=m)) for m in sizes]


def task_of(model: Any = network, **settings: Any) -> Supervised:
    return Supervised(model, samples(), **settings)


def variances(task: Supervised, buffers: Floats | None) -> Floats:
    """The running variances among the buffers."""
    module = task.model(task.init(0), buffers)
    return torch.cat([b for name, b in module.named_buffers() if "var" in name]).numpy()  # type: ignore[return-value]


def trained(start: nn.Module, client: int, t: int, local: Local) -> nn.Module:
    """One client's round as it is written in PyTorch."""
    (x, y), model, rng = samples()[client], network(), stream(0, "local", t, client)
    model.load_state_dict(start.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), local.lr, momentum=0.9, weight_decay=5e-4)
    for _ in range(local.epochs or 0):
        order = rng.permutation(len(y))
        for k in range(0, len(y) - len(y) % min(local.batch, len(y)), min(local.batch, len(y))):
            batch = order[k : k + local.batch]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(torch.from_numpy(x[batch])), torch.from_numpy(y[batch]))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model


def plain_fedavg(rounds: int) -> nn.Module:
    """Rounds of all clients, each weighted by a third, with nothing but PyTorch and a mean of the state dicts."""
    model = network()
    nn.utils.vector_to_parameters(torch.from_numpy(task_of().init(0)), model.parameters())
    for t in range(1, rounds + 1):
        before = model.state_dict()
        after = [trained(model, client, t, PROTOCOL).state_dict() for client in range(3)]
        for name, value in before.items():
            if name in dict(model.named_parameters()):
                step = sum((ONE * (a[name] - value)).double() for a in after) / (3 * ONE)
                value += step.float()  # type: ignore[union-attr]
            else:
                mean = sum(ONE * a[name].double() for a in after) / (3 * ONE)
                value.copy_(mean if value.is_floating_point() else mean.round())  # type: ignore[union-attr]
    return model


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with one_thread(), Pool(task_of(), FEW, workers=2) as made:
        yield made


def end_of(engine: Any, local: Local, rounds: int) -> fs.core.Snapshot:
    run = fs.Run(engine, fs.FedAvg(), fs.Bernoulli(1.0), rounds, local=local)
    *_, last = fs.together(engine, [fs.play(run)])
    return last[0]  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["serial", "pool"])
def test_fedavg_equals_a_loop_in_pytorch_bit_for_bit(name: str, pool: Pool) -> None:
    """With momentum, weight decay, epochs and BatchNorm."""
    due, task = plain_fedavg(rounds=3), task_of()
    last = end_of(pool if name == "pool" else Serial(task, FEW), PROTOCOL, rounds=3)
    got = task.model(last.params, last.checkpoint.buffers).state_dict()
    for name, value in due.state_dict().items():
        np.testing.assert_array_equal(got[name].numpy(), value.numpy(), name)
    assert int(got["1.num_batches_tracked"]) == 15  # 4, 2 and 8 steps a round: the mean is rounded to 5


def test_a_pool_agrees_with_serial_about_buffers(pool: Pool) -> None:
    check_engine(pool, rounds=2)
    one, other = (
        [s.checkpoint.buffers for s in simulate(engine, fs.strategies.CAFed(), fs.Bernoulli(0.7), rounds=4)]
        for engine in (pool, Serial(task_of(), FEW))
    )
    np.testing.assert_array_equal(one, other)  # type: ignore[arg-type]


def test_a_battery_finds_an_engine_that_forgets_buffers() -> None:
    class Forgetful(Serial):
        def train(self, jobs: Any) -> list[Reply]:
            return super().train([job._replace(buffers=None) for job in jobs])

    with pytest.raises(AssertionError, match="the model's buffers must train like Serial"):
        check_engine(Forgetful(task_of(), FEW), rounds=1)


def test_a_run_goes_on_from_a_checkpoint_to_the_same_bits() -> None:
    engine = Serial(task_of(), FEW)
    whole = list(simulate(engine, fs.FedStale(0.5), fs.Bernoulli(0.7), rounds=6, seed=2))
    start = list(simulate(engine, fs.FedStale(0.5), fs.Bernoulli(0.7), rounds=3, seed=2))[-1].checkpoint
    *_, last = simulate(engine, fs.FedStale(0.5), fs.Bernoulli(0.7), rounds=6, seed=2, start=start)
    np.testing.assert_array_equal(last.params, whole[-1].params)
    np.testing.assert_array_equal(last.checkpoint.buffers, whole[-1].checkpoint.buffers)  # type: ignore[arg-type]


def whole_batch(model: Any, data: list[tuple[Any, Any]], **settings: Any) -> tuple[Supervised, fs.core.Snapshot]:
    """One round of FedAvg with one step of every client on all of its samples."""
    task = Supervised(model, data, **settings)
    *_, last = simulate(Serial(task, Local(0.1, steps=1, batch=99)), fs.FedAvg(), fs.Bernoulli(1.0), rounds=1)
    return task, last


def test_frozen_statistics_make_one_step_that_of_a_large_batch() -> None:
    data = samples((10, 10, 10))
    union = [tuple(np.concatenate(part) for part in zip(*data, strict=True))]
    _, federated = whole_batch(network, data, buffers="frozen")
    _, large = whole_batch(network, union, buffers="frozen")  # type: ignore[arg-type]
    np.testing.assert_allclose(federated.params, large.params, atol=1e-6)


def test_equal_batch_statistics_make_one_step_that_of_a_large_batch() -> None:
    """Clients with the same samples: the statistics of each are those of all."""
    (one,) = samples((10,))
    _, federated = whole_batch(network, [one] * 3)
    _, large = whole_batch(network, [tuple(np.concatenate([part] * 3) for part in one)])  # type: ignore[list-item]
    np.testing.assert_allclose(federated.params, large.params, atol=1e-6)
    got, due = federated.checkpoint.buffers, large.checkpoint.buffers
    np.testing.assert_allclose(got, due, rtol=5e-3)  # type: ignore[arg-type]  # variances divide by n - 1


def test_running_means_are_those_of_a_large_batch() -> None:
    def first() -> nn.Module:
        return nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(16, 3))

    data = samples((10, 10, 10))
    union = [tuple(np.concatenate(part) for part in zip(*data, strict=True))]
    _, federated = whole_batch(first, data)
    _, large = whole_batch(first, union)  # type: ignore[arg-type]
    assert federated.checkpoint.buffers is not None
    assert large.checkpoint.buffers is not None
    np.testing.assert_allclose(federated.checkpoint.buffers[0], large.checkpoint.buffers[0], rtol=1e-5)


RULES = {
    "fedstale": (fs.FedStale(beta=1.0), fs.Sgd(1.0)),
    "mifa": (fs.strategies.MIFA(), fs.Sgd(1.0)),
    "unbiased": (fs.Unbiased(), fs.Sgd(1.0)),
    "adam": (fs.FedAvg(), fs.servers.Adam(0.1)),
}


@pytest.mark.parametrize("name", RULES)
def test_running_variances_are_never_negative(name: str) -> None:
    (strategy, server), task = RULES[name], task_of()
    run = simulate(Serial(task, FEW), strategy, fs.Bernoulli(0.1), rounds=60, seed=3, server=server)
    seen = [s for s in run if len(s.clients)]
    assert 5 < len(seen) < 40
    for s in seen:
        assert (variances(task, s.checkpoint.buffers) >= 0).all()


def test_buffers_are_not_divided_by_the_probability_and_not_remembered() -> None:
    """With p = 0.01 a step is a hundred times longer, and the buffers are what they were."""
    engine, rare = Serial(task_of(), FEW), fs.estimators.Known([0.01] * 3)
    ends = [
        next(iter(simulate(engine, rule, fs.Bernoulli(0.5), rounds=1, seed=4, estimator=rare)))
        for rule in (fs.FedAvg(), fs.Unbiased(), fs.FedStale(beta=1.0), fs.strategies.MIFA())
    ]
    m = len(ends[0].clients)
    assert 0 < m < 3
    np.testing.assert_allclose(ends[1].step, ends[0].step * 100 * m / 3, rtol=1e-4)
    for other in ends[1:]:
        np.testing.assert_array_equal(other.checkpoint.buffers, ends[0].checkpoint.buffers)  # type: ignore[arg-type]


class Scripted:
    """An engine whose replies have these buffers."""

    def __init__(self, rows: Any) -> None:
        self.task, self.local, self.rows = task_of(weights=[1, 2, 5]), FEW, rows

    def train(self, jobs: Any) -> list[Reply]:
        rows = [None if self.rows is None else self.rows[job.clients] for job in jobs]
        m = [len(job.clients) for job in jobs]
        zeros = [(np.zeros((k, self.task.d), np.float32), np.zeros(k, np.float32)) for k in m]
        return [Reply(*zero, None, b) for zero, b in zip(zeros, rows, strict=True)]

    def losses(self, job: Job) -> Any:
        return np.zeros(len(job.clients), np.float32)


def test_the_mean_is_weighted_over_those_that_were_heard() -> None:
    b = len(task_of().initial_buffers)
    rows = np.array([[1.0], [4.0], [100.0]]) * np.ones(b)
    play = simulate(Scripted(rows), fs.FedAvg(), fs.Trace([[1, 1, 0], [0, 0, 0], [0, 0, 1]]), rounds=3)
    found = [s.checkpoint.buffers for s in play]
    np.testing.assert_allclose(found, np.array([[3.0], [3.0], [100.0]]) * np.ones(b))  # the second: nobody


def test_a_client_whose_buffers_are_not_finite_is_refused() -> None:
    rows = np.ones((3, len(task_of().initial_buffers)))
    rows[1, 0] = np.inf
    (s,) = simulate(Scripted(rows), fs.FedAvg(), fs.Bernoulli(1.0), rounds=1)
    assert (s.clients.tolist(), s.refused.tolist()) == ([0, 2], [1])
    np.testing.assert_array_equal(s.checkpoint.buffers, rows[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [None, np.ones((3, 2))])
def test_an_engine_must_bring_the_buffers_back(rows: Any) -> None:
    with pytest.raises(BadInput, match=r"the engine's buffers must be \(3, 16\), got"):
        list(simulate(Scripted(rows), fs.FedAvg(), fs.Bernoulli(1.0), rounds=1))


def test_a_packet_that_is_lost_takes_its_buffers_with_it() -> None:
    rows = np.array([[1.0], [2.0], [4.0]]) * np.ones(len(task_of().initial_buffers))
    play = simulate(
        Scripted(rows), fs.FedAvg(), fs.Bernoulli(1.0), rounds=6, channel=fs.channels.Loss([0.0, 0.0, 1.0])
    )
    for s in play:
        assert s.clients.tolist() == [0, 1]
        np.testing.assert_allclose(s.checkpoint.buffers, (1 + 2 * 2) / 3)  # type: ignore[arg-type]
