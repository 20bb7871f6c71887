"""Layers that wait until they are read: the same gradients, and less of them is computed."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fedstale.core import Job, Local
from fedstale.engines import auto, make
from fedstale.engines.auto import Auto
from fedstale.tasks import unread
from fedstale.tasks.shortcuts import laid_out
from fedstale.tasks.supervised import Supervised
from fedstale.tasks.unread import Rows

B, T, C = 4, 6, 8


class Twice(torch.autograd.Function):
    """A function that torch does not show to its inputs."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return 2 * gradients[0]


class Block(nn.Module):
    """Sums over the steps before, and an MLP."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.norm, self.mix = how, nn.LayerNorm(C), nn.Linear(C, C)
        self.dense, self.drop = nn.Sequential(nn.Linear(C, 2 * C), nn.GELU(), nn.Linear(2 * C, C)), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(x.cumsum(1))
        if self.how == "in place":
            y = self.dense(x)
            x += 1
            return x + y
        if self.how == "frozen":
            with torch.no_grad():
                return x + self.dense(x)
        if self.how == "checkpoint":
            again: Tensor = checkpoint(self.dense, x, use_reentrant=True)
            return x + again
        if self.how == "autocast":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = x + self.dense(x).float()
            return x
        if self.how == "function":
            x = Twice.apply(self.mix(x))  # type: ignore[no-untyped-call]
        width = x.shape[-1]
        return x + self.drop(self.dense(self.norm(x))) * 0.5 @ torch.eye(width)


class Sequences(nn.Module):
    def __init__(self, reads: str = "last", how: str = "") -> None:
        super().__init__()
        self.blocks, self.head, self.reads = nn.Sequential(Block(how), Block(how)), nn.Linear(C, 3), reads

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(x)
        if self.reads == "head":  # all of it, and then one step
            scores: Tensor = self.head(x)[:, 0]
            return scores
        one = x[:, -1] if self.reads == "last" else x[:, 2:4].sum(1) if self.reads == "slice" else x.mean(1)
        answer: Tensor = self.head(one)
        return answer


def task(reads: str = "last", how: str = "") -> Supervised:
    draws = torch.Generator().manual_seed(0)
    data = [(torch.randn(8, T, C, generator=draws), torch.arange(8) % 3) for _ in range(3)]
    torch.manual_seed(0)
    return Supervised(Sequences(reads, how), data)


def gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    F.cross_entropy(module(x), torch.arange(len(x)) % 3).backward()  # type: ignore[no-untyped-call]
    return [torch.zeros(1) if p.grad is None else p.grad for p in module.parameters()]


@pytest.mark.parametrize("how", ["", "frozen", "autocast"])
@pytest.mark.parametrize("reads", ["last", "slice", "head", "all"])
def test_gradients_are_those_of_layers_that_do_not_wait(reads: str, how: str) -> None:
    plain = Sequences(reads, how)
    other, x = copy.deepcopy(plain), torch.randn(B, T, C)
    unread.wait(other, [name for name, layer in other.named_modules() if type(layer) is nn.Linear])
    for one, due in zip(gradients(copy.deepcopy(other), x), gradients(plain, x), strict=True):
        torch.testing.assert_close(one, due, rtol=0, atol=1e-6)


def test_only_what_is_read_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "WORTH", 1)
    found = laid_out(task())
    assert found.waiting == ("blocks.1.mix", "blocks.1.dense.0", "blocks.1.dense.2")
    assert laid_out(task("head")).waiting == (*found.waiting, "head")
    assert laid_out(task("all")).waiting == ()
    shapes: list[torch.Size] = []
    found.working.flat.module.get_submodule("blocks.1.dense.1").register_forward_hook(
        lambda layer, inputs, out: shapes.append(out.shape)
    )
    linear, rows = F.linear, list[int]()

    def counted(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows.append(x.shape[:-1].numel())
        return linear(x, weight, bias)

    with monkeypatch.context() as patch:
        patch.setattr(F, "linear", counted)
        first = next(found.batches(0, Local(1.0, steps=1, batch=B), np.random.default_rng(0)))
        found.gradient(found.init(0), 0, first)
    assert shapes == [(B, T, 2 * C)]  # as far as the model can see
    assert sorted(rows) == [*[B] * 4, *[B * T] * 3]  # the last block and the head; the first block


@pytest.mark.parametrize("how", ["in place", "checkpoint", "function"])
def test_model_that_waiting_would_change_does_not_wait(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "WORTH", 1)
    assert laid_out(task(how=how)).waiting == ()


def test_little_to_spare_is_not_worth_it() -> None:
    assert laid_out(task()).waiting == ()


def test_change_in_place_behind_the_back_of_a_layer_is_an_error() -> None:
    layer, x = nn.Linear(C, C), torch.randn(B, T, C)
    wrapped = nn.Sequential(layer)
    unread.wait(wrapped, ["0"])
    one, two = wrapped(x), torch.relu(wrapped(x))
    assert isinstance(two, Rows)
    x.add_(1)
    for late in (one, two):
        with pytest.raises(RuntimeError, match="must not be changed in place"):
            late.sum()
    after = wrapped(x)
    then = torch.relu(after)
    after += 1
    with pytest.raises(RuntimeError, match="must not be changed in place"):
        then.sum()


def test_function_that_does_not_see_its_inputs_is_an_error_and_not_a_lost_gradient() -> None:
    model = nn.Sequential(nn.Linear(C, C))
    unread.wait(model, ["0"])
    with pytest.raises(RuntimeError, match=r"torch\.autograd\.Function"):
        Twice.apply(model(torch.randn(B, T, C))).sum().backward()  # type: ignore[no-untyped-call]


def test_long_chain_of_residuals_computes_every_layer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, calls, linear = nn.Sequential(*(nn.Linear(C, C) for _ in range(150))), 0, F.linear

    def counted(*args: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return linear(*args)

    monkeypatch.setattr(F, "linear", counted)
    unread.wait(layers, map(str, range(150)))
    x = torch.randn(B, T, C)
    for layer in layers:
        x = x + layer(x)
    assert x[:, -1].shape == (B, C)
    assert calls == 150


def test_auto_leaves_out_what_is_not_read_and_equals_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "WORTH", 1)
    monkeypatch.setattr(auto, "SMALL", 1)
    monkeypatch.setattr(auto, "cores", lambda: 1)
    local, one = Local(0.1, steps=3, batch=4), task()
    job = Job(one.init(0), np.arange(one.n), 0, 1, local)
    engine = Auto(one, local)
    assert isinstance(engine._serial.task, Supervised)
    assert engine._serial.task.waiting
    due = make("serial", one, local).train([job])[0]
    got = engine.train([job])[0]
    np.testing.assert_allclose(got.updates, due.updates, rtol=0, atol=1e-6)
    np.testing.assert_allclose(got.losses, due.losses, rtol=1e-6)


def own(model: nn.Module, data: Any, context: Any) -> float:
    """Plain SGD, as a user writes it."""
    optimizer, losses = torch.optim.SGD(model.parameters(), context.rate), list[float]()
    for x, y in data.batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses[0]


def test_own_training_loop_leaves_out_what_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "WORTH", 1)
    local, one = Local(0.1, steps=3, batch=4, train=own), task()
    job, waited = Job(one.init(0), np.arange(one.n), 0, 1, local), list[bool]()
    due = make("serial", one, local).train([job])[0]
    found, forward = laid_out(one), unread._forward

    def noted(layer: nn.Linear, x: Tensor) -> Tensor:
        waited.append(True)
        return forward(layer, x)

    monkeypatch.setattr(unread, "_forward", noted)
    got = make("serial", found, local).train([job])[0]
    assert waited
    np.testing.assert_allclose(got.updates, due.updates, rtol=0, atol=1e-6)
