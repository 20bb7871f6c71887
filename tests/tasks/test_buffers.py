"""Buffers that training changes: found, averaged or frozen, and part of every evaluation."""

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedstale as fs
from fedstale.core import BadInput, Job, Local, buffered, scores_of_clients
from fedstale.core.rng import stream
from fedstale.engines import Serial
from fedstale.engines.batched.engine import Batched
from fedstale.tasks.flat import Buffers
from fedstale.tasks.supervised import Supervised
from fedstale.testing import check_engine

LOCAL = Local(0.1, steps=3, batch=6)
NAMES = ("1.running_mean", "1.running_var", "1.num_batches_tracked")


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def pairs(sizes: tuple[int, ...] = (8, 6, 12)) -> list[tuple[Any, Any]]:
    rng = stream(0, "pairs")
    return [(2 + rng.standard_normal((m, 5)).astype(np.float32), rng.integers(3, size=m)) for m in sizes]


def task_of(model: Any = network, **settings: Any) -> Supervised:
    return Supervised(model, pairs(), pairs(), **settings)


def run(task: Supervised, rounds: int = 4) -> fs.core.Snapshot:
    *_, last = fs.simulate(Serial(task, LOCAL), fs.FedAvg(), fs.Bernoulli(0.7), rounds=rounds, seed=1)
    return last


def test_the_buffers_of_a_layer_that_changes_one_are_found_and_are_no_parameters() -> None:
    task = task_of()
    assert task.averaged == NAMES
    assert task.d == 5 * 4 + 4 + 8 + 4 * 3 + 3
    np.testing.assert_array_equal(task.initial_buffers, [0] * 4 + [1] * 4 + [0])
    still = Supervised(lambda: nn.BatchNorm1d(5), [(np.zeros((4, 5), np.float32), [0, 1, 2, 3])])
    assert still.averaged == ("running_mean", "running_var", "num_batches_tracked")  # also a mean that stays 0


class Counted(nn.Module):
    """A buffer that is bound anew in every step, beside a constant one of another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.seen: torch.Tensor
        self.linear.register_buffer("mask", torch.ones(2))
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen = self.seen + len(x)
        return self.linear(x)  # type: ignore[no-any-return]


def test_buffers_of_any_kind_are_averaged() -> None:
    task = task_of(Counted)
    assert task.averaged == ("seen",)
    last = run(task, rounds=1)
    assert last.checkpoint.buffers is not None
    assert last.checkpoint.buffers.tolist() == [18]  # three steps of six samples
    check_engine(Serial(task, LOCAL), rounds=1)


def test_counters_are_rounded_and_other_types_kept() -> None:
    module = nn.BatchNorm1d(1).double()
    buffers = Buffers(module, ["running_mean", "running_var", "num_batches_tracked"])
    buffers.load(np.array([1 / 3, 0.1, 6.6]))
    assert buffers.read().tolist() == [1 / 3, 0.1, 7]
    assert module.num_batches_tracked is not None
    assert module.num_batches_tracked.dtype == torch.int64


def test_an_evaluation_uses_the_buffers_of_the_checkpoint() -> None:
    task = task_of()
    last = run(task)
    module = task.model(last.params, last.checkpoint.buffers)
    assert not module.training
    assert not np.allclose(last.checkpoint.buffers, task.initial_buffers)  # type: ignore[arg-type]
    due = []
    for x, y in pairs():
        with torch.no_grad():
            due.append(nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).item())
    assert fs.evaluate(task, last)["loss"] == pytest.approx(np.mean(due), rel=1e-6)
    assert fs.evaluate(task, last.checkpoint) == fs.evaluate(task, last)
    np.testing.assert_allclose(scores_of_clients(task, last)["loss"], due, rtol=1e-6)
    for other in (last.checkpoint._replace(buffers=task.initial_buffers), last.checkpoint._replace(t=9)):
        assert (fs.evaluate(task, other) == fs.evaluate(task, last)) == (other.t == 9)


def test_a_task_without_buffers_is_evaluated_as_ever() -> None:
    task = task_of(lambda: nn.Linear(5, 3))
    last = run(task)
    assert last.checkpoint.buffers is None
    assert fs.evaluate(task, last) == task.evaluate(last.params)
    assert scores_of_clients(fs.Quadratic([[1.0]]), last) == {}


def test_parameters_alone_are_not_evaluated() -> None:
    task = task_of()
    for score in (task.evaluate, task.per_client, task.objective, task.test_scores, task.model):
        with pytest.raises(BadInput, match=r"buffers of this model \(1.running_mean.*: use fs.evaluate\(task, s\)"):
            score(task.init(0))  # type: ignore[operator]
    with pytest.raises(BadInput, match=r"buffers must be \(9,\), got \(8,\)"):
        task.evaluate(task.init(0), np.ones(8))


def test_frozen_buffers_stay_and_normalise_in_training_too() -> None:
    made = network()
    made[1].running_mean.fill_(2.0)  # type: ignore[operator, union-attr]
    task = task_of(made, buffers="frozen")
    assert task.averaged == ()
    assert buffered(task) is None
    last = run(task)
    assert last.checkpoint.buffers is None
    assert torch.equal(task.model(last.params).get_buffer("1.running_mean"), torch.full((4,), 2.0))
    fs.evaluate(task, last)  # in evaluation mode; training goes on as before
    x, y = pairs()[0]
    batch, params = next(task.batches(0, Local(0.1, steps=1, batch=8), stream(0))), task.init(0)
    due = task.model(params)
    nn.functional.cross_entropy(due(torch.from_numpy(x)), torch.from_numpy(y)).backward()  # type: ignore[no-untyped-call]
    gradient = torch.cat([p.grad.flatten() for p in due.parameters() if p.grad is not None])
    np.testing.assert_allclose(task.gradient(params, 0, batch)[1], gradient, atol=1e-6)
    check_engine(Batched(task, LOCAL), rounds=1, tolerance=1e-5)


def test_buffers_that_cannot_be_frozen_and_unknown_treatments_are_refused() -> None:
    def restless() -> nn.Module:
        made = Counted()
        made.register_forward_pre_hook(lambda module, _: module.get_buffer("seen").add_(1) and None)
        return made

    with pytest.raises(BadInput, match="frozen buffers must not change in evaluation mode, got changes in seen"):
        task_of(restless, buffers="frozen")
    with pytest.raises(BadInput, match="buffers must be 'average' or 'local' or 'frozen', got 'mean'"):
        task_of(buffers="mean")


def test_a_batch_of_one_sample_is_a_sentence() -> None:
    task = Supervised(network, pairs((8, 9)))
    with pytest.raises(BadInput, match=r"cannot train client 1 on one sample alone \(Expected .* use drop_last"):
        run_epochs(task, drop_last=False)
    with pytest.raises(BadInput, match="cannot train client Kiel on one sample alone"):
        run_epochs(Supervised(network, pairs((8, 9)), names=("Bonn", "Kiel")), drop_last=False)
    run_epochs(task, drop_last=True)


def run_epochs(task: Supervised, drop_last: bool) -> None:
    local = Local(0.1, epochs=1, batch=4, drop_last=drop_last)
    list(fs.simulate(Serial(task, local), fs.FedAvg(), fs.Bernoulli(1.0), rounds=1))


def test_a_pickled_task_starts_from_the_same_buffers() -> None:
    task = task_of()
    run(task)
    copied = pickle.loads(pickle.dumps(task_of(model=network())))
    np.testing.assert_array_equal(copied.initial_buffers, task.initial_buffers)


def test_batched_refuses_them_and_auto_takes_another_engine() -> None:
    with pytest.raises(BadInput, match=r"cannot keep buffers that training changes \(1.running_mean"):
        Batched(task_of(), LOCAL)
    assert fs.engine("auto", task_of(), LOCAL).name in ("serial", "pool")  # type: ignore[attr-defined]


def own_loop(model: nn.Module, data: Any, context: Any) -> None:
    """The steps of `Local`, written out; it returns no loss, which is then computed besides."""
    optimizer = torch.optim.SGD(model.parameters(), context.rate)
    for x, y in data.batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@pytest.mark.parametrize("buffers", ["average", "frozen"])
def test_a_loop_of_the_users_own_trains_and_returns_the_same_buffers(buffers: str) -> None:
    task, start = task_of(buffers=buffers), Job(task_of().init(0), np.arange(3), 0, 1, LOCAL)
    if len(task.initial_buffers):
        start = start._replace(buffers=task.initial_buffers + 0.5)
    due = Serial(task, LOCAL).train([start])[0]
    got = Serial(task, LOCAL).train([start._replace(local=dataclasses.replace(LOCAL, train=own_loop))])[0]
    np.testing.assert_allclose(got.updates, due.updates, atol=1e-6)
    np.testing.assert_array_equal(got.losses, due.losses)
    assert (got.buffers is None) == (due.buffers is None) == (buffers == "frozen")
    if got.buffers is not None and due.buffers is not None:
        np.testing.assert_allclose(got.buffers, due.buffers, rtol=1e-5)


def test_a_client_whose_buffers_are_not_finite_is_refused() -> None:
    class Broken(Serial):
        def train(self, jobs: Any) -> Any:
            replies = super().train(jobs)
            assert replies[0].buffers is not None
            replies[0].buffers[1, 0] = np.inf
            return replies

    (s,) = fs.simulate(Broken(task_of(), LOCAL), fs.FedAvg(), fs.Bernoulli(1.0), rounds=1)
    assert s.refused.tolist() == [1]
    assert s.clients.tolist() == [0, 2]
    assert np.isfinite(s.checkpoint.buffers).all()
