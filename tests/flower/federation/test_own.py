"""What stays with a client of a federation: personal layers, FedBN, and the state of a training loop of its own."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed; `make test-flower` runs these in their own environment")

from fedstale import Trace, simulate
from fedstale.core import BadInput, Local
from fedstale.engines import Serial
from fedstale.flower.federation.client.training import OneClient, OwnState, train_on_order
from fedstale.flower.federation.protocol.link import Order
from fedstale.flower.federation.server.app import of_module
from fedstale.flower.federation.server.rounds import Server
from fedstale.tasks.supervised import Supervised
from tests.flower.federation.inprocess import InProcess, roster_of
from tests.flower.federation.parts import LOCAL, N, made, table

SETTINGS: list[tuple[dict[str, Any], bool]] = [
    ({"buffers": "local"}, False),
    ({"personal": ["2"]}, False),
    ({}, True),
    ({"buffers": "frozen", "personal": ["2.bias"]}, True),
]


def make() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))


def task_of(settings: dict[str, Any]) -> Supervised:
    draw = torch.Generator().manual_seed(0)
    data = [(torch.randn(20, 4, generator=draw), torch.randint(3, (20,), generator=draw)) for _ in range(N)]
    return Supervised(make, data, **settings)


def counting(model: Any, data: Any, context: Any) -> None:
    """Steps that grow with the rounds that the client has trained in, which only its state knows."""
    context.state["rounds"] = context.state.get("rounds", 0) + 1
    optimizer = torch.optim.SGD(model.parameters(), context.rate * context.state["rounds"])
    for x, y in data.batches():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


class WithOwn(InProcess):
    """Clients that keep something, each in its folder, and train twice, as if a round had been void."""

    def __init__(self, task: Supervised, folder: Path, train: Callable[..., Any] | None) -> None:
        super().__init__(task, [])
        self.folder, self.train = folder, train

    def trained(self, order: Order) -> Any:
        client, kept = OneClient(self.task, order.client), OwnState(self.folder / str(order.client))
        first, again = (train_on_order(client, order, self.train, kept) for _ in range(2))
        assert first == again
        return again


@pytest.mark.parametrize(("settings", "loop"), SETTINGS)
def test_clients_that_keep_something_have_the_bits_of_a_simulation(
    tmp_path: Path, settings: dict[str, Any], loop: bool
) -> None:
    rows, task, train = table(6), task_of(settings), counting if loop else None
    link = WithOwn(task, tmp_path / "clients", train)

    start = of_module(make, **settings)
    assert start.layout() == task.layout()
    s = made(tmp_path, rounds=len(rows))
    for row in rows:  # a new server each round, as after a crash
        link.there = np.flatnonzero(row).tolist()
        play = Server(s, link, lambda: roster_of(range(N)), start).play()
        closed = next(play)
        play.close()
    engine = Serial(task, dataclasses.replace(Local(**LOCAL), train=train))
    *_, due = simulate(engine, s.rules.strategy, Trace(rows), rounds=len(rows), seed=1, estimator=s.rules.estimator,
                     defence=s.rules.defence)  # fmt: skip
    assert np.array_equal(closed.state.checkpoint.params, due.params)
    assert max(len([*folder.iterdir()]) for folder in (tmp_path / "clients").iterdir()) == 2


def test_a_client_without_a_folder_for_its_state_says_so() -> None:
    task = task_of({"personal": ["2"]})
    order = Order(0, 0, 1, "token", "run", 1, Local(**LOCAL), task.init(1), None, True, task.initial_buffers)
    with pytest.raises(BadInput, match="own=FOLDER in its node configuration, got none"):
        train_on_order(OneClient(task, 0), order)
