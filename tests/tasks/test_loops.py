"""Training loops of the user's own: they get what ours gets, and are as repeatable."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fedstale.core import BadInput, Job, Local, part
from fedstale.core.rng import stream
from fedstale.engines import Serial, make
from fedstale.engines.batched.engine import Batched
from fedstale.engines.processes.pool import Pool
from fedstale.lab.runs.store import RunFolder
from fedstale.participation import Bernoulli
from fedstale.simulate import simulate
from fedstale.strategies import CAFed, FedAvg, Scaffold
from fedstale.tasks.quadratic import Quadratic
from fedstale.tasks.supervised import Supervised
from fedstale.testing import check_engine

cross_entropy = nn.functional.cross_entropy


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3))


def samples() -> list[tuple[Any, Any]]:
    rng = stream(0, "samples")
    return [(rng.standard_normal((m, 4)).astype(np.float32), rng.integers(3, size=m)) for m in (20, 7, 12)]


def noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + 0.1 * torch.randn(x.shape, generator=generator)


def task_of(model: Callable[[], nn.Module] = network) -> Supervised:
    return Supervised(model, samples(), samples(), transform=noisy)


def plain_sgd(model: nn.Module, data: Any, context: Any) -> float:
    """Our own local training, written out."""
    first = None
    for x, y in data.batches():
        model.zero_grad()
        loss = cross_entropy(model(x), y, reduction="none").mean()  # as ours is rounded
        first = first or loss.item()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= context.rate * p.grad
    assert first
    return first


def silent_sgd(model: nn.Module, data: Any, context: Any) -> None:
    plain_sgd(model, data, context)


def shuffling(model: nn.Module, data: Any, context: Any) -> None:
    """Uses all that is random: a DataLoader, numpy, and torch's own generator."""
    loader = DataLoader(data, batch_size=context.batch, shuffle=True, generator=context.generator)
    optimizer = torch.optim.Adam(model.parameters(), context.rate * (1 + context.rng.random()))
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x + torch.randn(())), y).backward()
        optimizer.step()


def last(task: Any, local: Local, strategy: Any = FedAvg(), rounds: int = 3) -> np.ndarray:
    *_, end = simulate(Serial(task, local), strategy, Bernoulli(0.7), rounds=rounds, seed=1)
    return end.params


@pytest.mark.parametrize(
    "amount", [{"steps": 4}, {"epochs": 2, "drop_last": True}, {"work": lambda client, t, rng: client + t}]
)
@pytest.mark.parametrize("loop", [plain_sgd, silent_sgd, "tests.tasks.test_loops:plain_sgd"])
def test_a_loop_of_plain_sgd_has_the_bits_of_ours(loop: Any, amount: dict[str, Any]) -> None:
    """Also what dropout and the transform draw, and the losses that CA-Fed selects by."""
    ours = Local(0.1, batch=5, decay=0.1, **amount)
    own = Local(0.1, batch=5, decay=0.1, train=loop, **amount)
    for strategy in (FedAvg(), CAFed()):
        assert np.array_equal(last(task_of(), own, strategy), last(task_of(), ours, strategy))
    job = Job(task_of().init(0), np.arange(3), 1, 2, ours)
    replies = [Serial(task_of(), ours).train([job._replace(local=local)])[0] for local in (ours, own)]
    assert np.array_equal(replies[0].losses, replies[1].losses)
    assert replies[0].work is not None
    assert replies[1].work is not None
    assert all(map(np.array_equal, replies[0].work, replies[1].work))


def test_all_that_a_loop_draws_is_named() -> None:
    """The same bits again, whatever was drawn before; others for another client, round and seed."""
    task, local = task_of(), Local(0.01, train=shuffling, batch=5)
    job = Job(task.init(0), np.arange(3), 0, 1, local)
    first = Serial(task, local).train([job])[0].updates
    torch.rand(7)
    alone = [Serial(task, local).train([job._replace(clients=np.array([i]))])[0].updates[0] for i in (2, 1, 0)]
    assert np.array_equal(first, alone[::-1])
    for other in (job._replace(t=2), job._replace(seed=1)):
        assert not np.isclose(Serial(task, local).train([other])[0].updates, first).all(axis=1).any()
    before = torch.random.get_rng_state()
    Serial(task, local).train([job])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_data_is_a_dataset_of_the_clients_own_samples() -> None:
    seen: list[Any] = []

    def look(model: nn.Module, data: Any, context: Any) -> None:
        seen.append([data[i] for i in range(len(data))])
        assert [y for _, y in data] == [y for _, y in seen[-1]]
        assert torch.equal(data[-1][0], data[len(data) - 1][0])
        assert (context.round, context.client, context.batch, model.training) == (4, 1, 8, True)
        assert context.rate == 0.5 / (1 + 4)

    task = task_of()
    local = Local(0.5, batch=8, decay=1.0, train=look)
    Serial(task, local).train([Job(task.init(0), np.array([1]), 0, 4, local)])
    x, y = samples()[1]
    assert np.array_equal(np.stack([v.numpy() for v, _ in seen[0]]), x)
    assert [int(v) for _, v in seen[0]] == y.tolist()


def test_a_loop_leaves_nothing_behind() -> None:
    """What it does to its model, such as hooks, frozen layers or eval mode, is not there for the next client."""

    def spoiling(model: Any, data: Any, context: Any) -> None:
        assert model.training
        assert all(p.requires_grad for p in model.parameters())
        model[0].weight.requires_grad_(False)
        model[0].register_forward_hook(lambda *_: torch.zeros(5, 6))
        plain_sgd(model.eval(), data, context)

    task, local = task_of(), Local(0.1, batch=5)
    job = Job(task.init(0), np.arange(3), 0, 1, local)
    clean = Serial(task, local).train([job])[0].updates
    with pytest.raises(TypeError):  # the frozen layer has no gradient
        Serial(task, local).train([job._replace(local=Local(0.1, batch=5, train=spoiling))])
    assert np.array_equal(Serial(task, local).train([job])[0].updates, clean)


def replaces(model: Any, data: Any, context: Any) -> None:
    model[3] = nn.Linear(6, 4)


def renames(model: Any, data: Any, context: Any) -> None:
    nn.utils.parametrizations.weight_norm(model[0])


def says_a_word(model: Any, data: Any, context: Any) -> str:
    return "done"


def says_two_numbers(model: Any, data: Any, context: Any) -> Tensor:
    return torch.zeros(2)


@pytest.mark.parametrize(
    ("loop", "sentence"),
    [
        (replaces, "train must keep the model's parameters and their shapes, got others for 3.weight, 3.bias"),
        (renames, "train must keep the model's parameters and their shapes, got others for 0.weight"),
        (says_a_word, "train must return the loss at the start, a number, or nothing, got 'done'"),
        (says_two_numbers, r"a number, or nothing, got tensor\(\[0., 0.\]\)"),
    ],
)
def test_a_loop_that_cannot_be_used_is_refused(loop: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        last(task_of(), Local(0.1, train=loop))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"train": lambda model, data: None},
            r"train must be a function of \(model, data, context\), got <lambda>",
        ),
        ({"train": "no_colon"}, "train must be a function or its name \"package.module:function\", got 'no_colon'"),
        ({"train": plain_sgd, "momentum": 0.9, "prox": 0.1}, "must do these itself, got momentum and prox"),
        ({"train": 5}, "train must be a function"),
    ],
)
def test_settings_that_do_not_fit_a_loop_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        Local(0.1, **settings)


def test_a_loop_is_refused_where_it_cannot_run() -> None:
    quadratic, local = Quadratic([[1.0]]), Local(0.1, train=plain_sgd)
    with pytest.raises(
        BadInput, match=r"local\.train needs a task with a torch model, such as Supervised, got Quad"
    ):
        last(quadratic, local)
    with pytest.raises(BadInput, match="engine 'batched' trains by SGD in equal batches, got train; use engine"):
        Batched(Supervised(lambda: nn.Linear(4, 3), samples()), local)
    with pytest.raises(BadInput, match=r"Scaffold\(\) adds a vector to every local gradient; the gradients of a"):
        last(task_of(), local, Scaffold())
    with pytest.raises(BadInput, match=r"'nothing\.here:fn' cannot be imported: No module named 'nothing'"):
        last(task_of(), Local(0.1, train="nothing.here:fn"))
    with pytest.raises(BadInput, match="engine 'pool' must be able to pickle the task and local training"):
        Pool(task_of(), Local(0.1, train=lambda model, data, context: None))


def test_auto_trains_a_loop_that_cannot_be_pickled() -> None:
    task, local = (
        task_of(),
        Local(0.05, batch=5, train=lambda model, data, context: silent_sgd(model, data, context)),
    )
    engine = make("auto", task, local)
    check_engine(engine, rounds=1)


class Curriculum(Supervised):
    """A task whose batches grow from round to round."""

    def round_batches(self, t: int, client: int, local: Local, rng: np.random.Generator) -> Any:
        return self.batches(client, Local(1, steps=1, batch=t), rng)


def test_a_task_that_draws_by_round_is_told_the_round() -> None:
    """In our own training, in the losses before it and in a training loop of the user's own."""
    seen: list[int] = []

    def look(model: nn.Module, data: Any, context: Any) -> None:
        seen.extend(len(y) for _, y in data.batches())

    task, local = Curriculum(nn.Linear(4, 3), samples()), Local(0.1, train=look)
    for t in (1, 3, 20):
        Serial(task, local).train([Job(task.init(0), np.array([0]), 0, t, local)])
    assert seen == [1, 3, 20]
    small, plain = Local(0.1, steps=1, batch=3), Local(0.1, steps=7)
    job = Job(task.init(0), np.arange(3), 0, 3, plain)
    usual = Serial(Supervised(nn.Linear(4, 3), samples()), small)
    assert np.array_equal(
        Serial(task, plain).train([job])[0].updates, usual.train([job._replace(local=small)])[0].updates
    )
    assert np.array_equal(Serial(task, plain).losses(job), usual.losses(job._replace(local=small)))
    with pytest.raises(BadInput, match="engine 'batched' would ignore what Curriculum does in round_batches"):
        Batched(task, plain)


def counting(model: nn.Module, data: Any, context: Any) -> None:
    """Keeps a number, a tensor and an optimizer; client 2 sends nonsense in round 2."""
    state, optimizer = context.state, torch.optim.Adam(model.parameters(), context.rate)
    if state:
        optimizer.load_state_dict(state["optimizer"])
    for x, y in data.batches():
        optimizer.zero_grad()
        (cross_entropy(model(x), y) + sum(p.sum() for p in model.parameters()) * state.get("dual", 0)).backward()
        optimizer.step()
    state["rounds"] = [*state.get("rounds", []), context.round]
    state["dual"] = state.get("dual", torch.zeros(1)) + 0.1
    state["optimizer"] = optimizer.state_dict()
    if (context.client, context.round) == (2, 2):
        nn.init.constant_(next(model.parameters()), float("nan"))


@part
class FirstTwoAreLost:
    """Client 0 is never reached; what client 1 sends is lost."""

    def probs(self, n: int, d: int) -> Any:
        return np.ones(n, np.float32)

    share = probs

    def init(self, n: int, streams: Any) -> None:
        return None

    def downlink(self, state: None, clients: Any, streams: Any) -> Any:
        return clients != 0, state

    def uplink(self, state: None, clients: Any, d: int, streams: Any) -> Any:
        return (clients != 1)[:, None], state


def test_a_client_keeps_its_state_from_round_to_round() -> None:
    """Also if its update was lost on its way; not if it was not reached, or if its update was refused."""
    task, local = Supervised(network, [*samples(), samples()[0]]), Local(0.01, train=counting)
    *before, end = simulate(Serial(task, local), FedAvg(), Bernoulli(1.0), rounds=3, channel=FirstTwoAreLost())
    kept = end.checkpoint.clients
    assert kept is not None
    assert {i: state["loop"]["rounds"] for i, state in kept.items()} == {1: [1, 2, 3], 2: [1, 3], 3: [1, 2, 3]}
    assert before[1].refused.tolist() == [2]
    earlier = before[0].checkpoint.clients
    assert earlier is not None
    assert earlier[3]["loop"]["rounds"] == [1]  # a checkpoint stays what it was
    assert task.evaluate(end.params)


def test_a_run_goes_on_from_a_checkpoint_with_the_states_of_its_clients(tmp_path: Path) -> None:
    run = {"strategy": FedAvg(), "participation": Bernoulli(0.6), "rounds": 6, "seed": 3}
    engine, folder = Serial(task_of(), Local(0.01, batch=4, train=counting)), RunFolder(tmp_path)
    for s in simulate(engine, **run):  # type: ignore[arg-type]
        if s.t == 3:
            folder.save_checkpoint(s.checkpoint)
    *_, again = simulate(engine, **run, start=folder.load_checkpoint(s.checkpoint))  # type: ignore[arg-type]
    assert np.array_equal(again.params, s.params)
    assert repr(again.checkpoint.clients) == repr(s.checkpoint.clients)


def test_a_pool_has_the_bits_of_serial_and_brings_states_back() -> None:
    task, local = task_of(), Local(0.01, batch=4, train=counting)
    ends = []
    with Pool(task, local, workers=1) as pool:
        check_engine(pool, rounds=1)  # the next one is nan for client 2
        for engine in (Serial(task, local), pool):
            *_, end = simulate(engine, FedAvg(), Bernoulli(0.8), rounds=4, seed=1)
            ends.append(end)
        lost = Job(task.init(0), np.arange(3), 0, 1, Local(0.1, train=lambda model, data, context: None))
        with pytest.raises(BadInput, match="must be able to pickle the task and local training"):
            pool.train([lost])
    assert np.array_equal(ends[0].params, ends[1].params)
    assert repr(ends[0].checkpoint.clients) == repr(ends[1].checkpoint.clients) != "{}"


def test_a_loop_without_a_state_keeps_nothing_and_one_that_empties_it_forgets() -> None:
    def forgetful(model: nn.Module, data: Any, context: Any) -> float:
        context.state.clear() if context.round == 2 else context.state.update(a=1)
        return 1.0

    for loop, due in ((plain_sgd, {}), (forgetful, {i: {} for i in range(3)})):
        *_, end = simulate(Serial(task_of(), Local(0.1, train=loop)), FedAvg(), Bernoulli(1.0), rounds=2)
        assert end.checkpoint.clients == due
    *_, end = simulate(Serial(task_of(), Local(0.1)), FedAvg(), Bernoulli(1.0), rounds=1)
    assert end.checkpoint.clients is None


def test_a_state_that_cannot_be_stored_is_refused_in_the_first_round() -> None:
    def logging(model: nn.Module, data: Any, context: Any) -> None:
        with Path(__file__).open() as context.state["log"]:
            pass

    with pytest.raises(
        BadInput, match=r"numbers, texts, tuples, lists and dicts, got TextIOWrapper in context\.sta"
    ):
        last(task_of(), Local(0.1, train=logging))


def test_what_a_client_keeps_of_a_round_whose_update_is_not_finite_is_dropped() -> None:
    *_, end = simulate(Serial(task_of(), Local(0.1, train=counting)), FedAvg(), Bernoulli(1.0), rounds=3)
    assert end.checkpoint.clients is not None
    assert {i: kept["loop"]["rounds"] for i, kept in end.checkpoint.clients.items()} == {
        0: [1, 2, 3], 1: [1, 2, 3], 2: [1, 3],
    }  # fmt: skip
