"""Local training beside a loop in plain PyTorch: the same bits, whatever the settings."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedstale.core import BadInput, Job, Local, Reply, Round, part
from fedstale.core.rng import stream
from fedstale.core.schedules import UniformSteps
from fedstale.engines import Serial, make
from fedstale.engines.auto import Auto
from fedstale.engines.batched.engine import Batched
from fedstale.engines.processes.pool import Pool
from fedstale.engines.serial import work_of, works_of
from fedstale.participation import Bernoulli
from fedstale.simulate import Run, play, simulate, together
from fedstale.strategies import FedAvg, Scaffold
from fedstale.tasks.quadratic import Quadratic
from fedstale.tasks.supervised import Supervised
from fedstale.testing import check_engine

SIZES = (20, 7, 33)
PROTOCOL = Local(0.1, epochs=2, batch=8, drop_last=True, momentum=0.9, weight_decay=5e-4)


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 3))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 3))


def line() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))


def samples() -> list[tuple[Any, Any]]:
    rng = stream(0, "samples")
    return [(rng.standard_normal((m, 3, 4)).astype(np.float32), rng.integers(3, size=m)) for m in SIZES]


def task_of(model: Any = network) -> Supervised:
    return Supervised(model, samples())


def loop(w: np.ndarray, client: int, t: int, local: Local, optimizer: Any) -> np.ndarray:
    """One client's round as it is written in PyTorch: model, optimizer, epochs, batches."""
    x, y = (torch.from_numpy(values) for values in samples()[client])
    model, rng, b = network(), stream(0, "local", t, client), min(local.batch, len(y))
    nn.utils.vector_to_parameters(torch.from_numpy(w.copy()), model.parameters())
    opt = optimizer(model.parameters())
    for _ in range(local.epochs or 1):
        order = torch.from_numpy(rng.permutation(len(y)))
        for batch in order.split(b):
            if len(batch) < b and local.drop_last:
                continue
            opt.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            if local.clip_norm:
                nn.utils.clip_grad_norm_(model.parameters(), local.clip_norm)
            opt.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


def fedavg(local: Local, optimizer: Any, rounds: int = 3) -> np.ndarray:
    w = task_of().init(0)
    for t in range(1, rounds + 1):
        total = np.zeros(len(w))
        for client in range(3):
            total += float(np.float32(1 / 3)) * (loop(w, client, t, local, optimizer) - w)
        w = w + (total / sum([float(np.float32(1 / 3))] * 3)).astype(np.float32)
    return w


SETTINGS = {
    "momentum": (PROTOCOL, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=5e-4)),
    "nesterov": (
        Local(0.1, epochs=1, batch=8, momentum=0.5, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.5, nesterov=True),
    ),
    "clipped": (Local(0.1, epochs=2, batch=8, clip_norm=0.3), lambda p: torch.optim.SGD(p, 0.1)),
    "adam": (Local(0.01, epochs=2, batch=8, optimizer="adam"), lambda p: torch.optim.Adam(p, 0.01)),
    "adamw": (
        Local(0.01, epochs=1, batch=8, weight_decay=0.1, optimizer={"kind": "adamw", "betas": [0.8, 0.9]}),
        lambda p: torch.optim.AdamW(p, 0.01, betas=(0.8, 0.9), weight_decay=0.1),
    ),
    "named": (
        Local(0.01, epochs=1, batch=8, optimizer="torch.optim:RMSprop"),
        lambda p: torch.optim.RMSprop(p, 0.01),
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_fedavg_equals_a_loop_in_pytorch_bit_for_bit(name: str) -> None:
    local, optimizer = SETTINGS[name]
    *_, last = simulate(Serial(task_of(), local), FedAvg(), Bernoulli(1.0), rounds=3)
    np.testing.assert_array_equal(last.params, fedavg(local, optimizer))


def test_a_pool_equals_the_loop_too() -> None:
    with Pool(task_of(), PROTOCOL, workers=2) as pool:
        for local, optimizer in (SETTINGS["momentum"], SETTINGS["adam"]):
            *_, ends = together(pool, [play(Run(pool, FedAvg(), Bernoulli(1.0), 2, local=local))])
            np.testing.assert_array_equal(ends[0].params, fedavg(local, optimizer, rounds=2))  # type: ignore[union-attr]


def test_quadratics_train_with_momentum_in_every_engine() -> None:
    task = Quadratic([[1.0, 2.0], [3.0, -1.0]])
    local = Local(0.1, steps=3, momentum=0.5, weight_decay=0.1)
    w, v = np.zeros(2), np.zeros(2)
    for _ in range(3):
        v = 0.5 * v + (w - task.centers[1]) + 0.1 * w
        w = w - 0.1 * v
    for engine in (Serial(task, local), make("batched", task, local)):
        update = engine.train([Job(task.init(0), np.array([1]), 0, 1, local)])[0].updates[0]
        np.testing.assert_allclose(update, w, rtol=1e-6)


def test_epochs_of_a_quadratic_are_refused() -> None:
    task, local = Quadratic([[1.0, 2.0]]), Local(0.1, epochs=1)
    with pytest.raises(BadInput, match=r"^a quadratic has no samples to count epochs by: give steps instead$"):
        Serial(task, local).train([Job(task.init(0), np.array([0]), 0, 1, local)])


@pytest.mark.parametrize("model", [network, mlp, line])
@pytest.mark.parametrize(
    "local",
    [
        PROTOCOL,
        Local(0.1, steps=6, batch=8, momentum=0.9),
        Local(0.1, steps=6, batch=8, weight_decay=0.1),
        Local(0.1, batch=8, momentum=0.5, work=UniformSteps(1, 6)),
    ],
)
def test_batched_trains_with_momentum_weight_decay_and_unequal_work(model: Any, local: Local) -> None:
    task = task_of(model)
    check_engine(Batched(task, local), Serial(task, local), tolerance=1e-5)


def test_batched_runs_with_and_without_momentum_do_not_change_each_other() -> None:
    task, plain, fast = task_of(line), Local(0.1, steps=4, batch=8), Local(0.1, steps=4, batch=8, momentum=0.9)
    engine, all_of_them = Batched(task, plain), np.arange(3)
    jobs = [Job(task.init(0), all_of_them, 0, 1, local) for local in (plain, fast, plain)]
    for reply, job in zip(engine.train(jobs), jobs, strict=True):
        np.testing.assert_array_equal(reply.updates, engine.train([job])[0].updates)


REFUSED = [
    (Local(0.1, optimizer="adam"), "optimizer 'adam'"),
    (Local(0.1, momentum=0.9, nesterov=True), "nesterov"),
    (Local(0.1, clip_norm=1.0), "clip_norm"),
    (Local(0.1, epochs=1), "epochs without drop_last"),
]


@pytest.mark.parametrize(("local", "what"), REFUSED)
def test_batched_refuses_the_rest_and_auto_does_not_pick_it(local: Local, what: str) -> None:
    task = task_of(line)
    with pytest.raises(BadInput, match=rf"equal batches, got {what}; use engine 'serial' or 'pool'$"):
        Batched(task, local)
    with Auto(task, local) as auto:
        assert auto.name != "batched"


@pytest.mark.parametrize(("local", "_what"), REFUSED)
def test_auto_trains_what_its_engine_refuses_with_serial(local: Local, _what: str) -> None:
    task, plain = task_of(line), Local(0.1, batch=8)
    jobs = [Job(task.init(0), np.arange(3), 0, 1, one) for one in (local, plain, local)]
    auto = Auto(task, plain)
    assert auto.name == "batched"
    for got, due in zip(auto.train(jobs), Serial(task, plain).train(jobs), strict=True):
        np.testing.assert_allclose(got.updates, due.updates, atol=1e-6)


@part
class FedNova:
    """Wang et al., 2020: updates by their own steps, times the mean number of steps."""

    def init(self, n: int, d: int) -> None:
        return None

    def aggregate(self, state: None, r: Round) -> tuple[np.ndarray, None]:
        assert r.work is not None
        a = r.weights[r.clients] / r.weights[r.clients].sum()
        return (a @ r.work.steps * ((a / r.work.steps) @ r.updates)).astype(np.float32), None


def test_fednova_finds_the_optimum_that_fedavg_with_unequal_work_misses() -> None:
    task = Quadratic([[0.0], [1.0]])
    local = Local(0.004, work=lambda client, t, rng: (1, 9)[client])
    ends = {}
    for rule in (FedNova(), FedAvg()):
        *_, last = simulate(Serial(task, local), rule, Bernoulli(1.0), rounds=400)
        ends[type(rule).__name__] = float(last.params[0])
    assert ends["FedNova"] == pytest.approx(0.5, abs=0.01)
    assert ends["FedAvg"] == pytest.approx(0.9, abs=0.01)


def test_scaffold_with_unequal_work_ends_at_the_optimum() -> None:
    task = Quadratic([[0.0], [1.0]], [[1.0], [1.0]])
    local = Local(0.1, work=lambda client, t, rng: (1, 9)[client])
    *_, last = simulate(Serial(task, local), Scaffold(), Bernoulli(1.0), rounds=300)
    assert float(last.params[0]) == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("name", ["serial", "batched", "pool"])
def test_a_reply_says_how_much_each_client_trained(name: str) -> None:
    task, clients = task_of(line), np.array([0, 1, 2])
    engine: Any = make(name, task, PROTOCOL)
    steps, epochs = Local(0.5, steps=4, batch=8), PROTOCOL
    unequal = Local(0.5, batch=8, work=lambda client, t, rng: client + t)
    jobs = [
        Job(task.init(0), clients, 0, 2, local)
        for local in (steps, epochs, unequal)
        if name != "pool" or local.work is None
    ]
    work = [reply.work for reply in engine.train(jobs)]
    assert [w.steps.tolist() for w in work] == [[4, 4, 4], [4, 2, 8], [2, 3, 4]][: len(jobs)]
    assert [w.samples.tolist() for w in work] == [[32, 28, 32], [32, 14, 64], [16, 21, 32]][: len(jobs)]
    assert work[0].rates.tolist() == [2.0, 2.0, 2.0]
    whole = Serial(task, steps).train([Job(task.init(0), clients, 0, 2, Local(0.5, epochs=2, batch=8))])[0].work
    assert whole is not None
    assert whole.samples.tolist() == [40, 14, 66]
    assert whole.steps.tolist() == [6, 2, 10]
    if name == "pool":
        engine.close()


def test_uniform_steps_are_drawn_for_each_client_and_round() -> None:
    task, local = task_of(line), Local(0.1, batch=8, work=UniformSteps(2, 5))

    def steps(seed: int, t: int) -> list[int]:
        reply: Reply = Serial(task, local).train([Job(task.init(0), np.arange(3), seed, t, local)])[0]
        assert reply.work is not None
        return reply.work.steps.tolist()

    drawn = [steps(0, t) for t in range(1, 30)]
    assert {k for row in drawn for k in row} == {2, 3, 4, 5}
    assert drawn[0] == steps(0, 1)
    assert [steps(1, t) for t in range(1, 30)] != drawn


@pytest.mark.parametrize("local", [Local(0.1, steps=3), PROTOCOL, Local(0.1, work=UniformSteps(1, 9))])
def test_the_work_of_many_jobs_is_that_of_each(local: Local) -> None:
    """Asynchronous rounds have a job for each client; settings and rounds that differ are not mixed."""
    task, params = Supervised(line, samples(), samples()), np.zeros(39, np.float32)
    places = [(1, local, [2, 0]), (1, local, [1]), (2, local, [1]), (1, Local(0.2, steps=2), [0]), (1, local, [])]
    jobs = [Job(params, np.array(who, np.int64), 7, t, settings) for t, settings, who in places]
    for found, job in zip(works_of(task, jobs), jobs, strict=True):
        wanted = work_of(task, job)
        np.testing.assert_array_equal(np.array(found), np.array(wanted))
