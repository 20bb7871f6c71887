"""Parts of a model that stay with their clients: personal layers, and FedBN's normalisation."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedstale as fs
from fedstale.core import NEW, BadInput, Job, Local
from fedstale.core.rng import stream
from fedstale.engines import Serial, make
from fedstale.engines.batched.engine import Batched
from fedstale.engines.processes.pool import Pool
from fedstale.simulate import checked, first, simulate
from fedstale.strategies import FedAvg, FedStale, Scaffold
from fedstale.tasks.flat import draw, seeded
from fedstale.tasks.supervised import Supervised
from fedstale.testing import check_engine

LOCAL = Local(0.1, epochs=1, batch=8, drop_last=True, momentum=0.9)
SIZES = (24, 9, 16)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        return self.head(torch.relu(self.norm(self.first(x))))


class Plain(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Identity()  # type: ignore[assignment]


def samples() -> list[tuple[Any, Any]]:
    rng = stream(0, "samples")
    return [((2 * rng.standard_normal((m, 4)) + m / 9).astype(np.float32), rng.integers(3, size=m)) for m in SIZES]


def task_of(model: Any = Net, **settings: Any) -> Supervised:
    return Supervised(model, samples(), samples(), **settings)


def loop(rounds: int, stays: Any, model: type[nn.Module]) -> tuple[list[nn.Module], list[float]]:
    """FedAvg in plain PyTorch: one model per client, of which all is averaged but what stays; accuracies."""
    with seeded(draw(stream(1, "init"))):
        start = model()
    clients = [copy.deepcopy(start) for _ in SIZES]
    data = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in samples()]
    shared = [name for name, _ in start.named_parameters() if not stays(name)]
    sent = {name: p.detach().clone() for name, p in start.named_parameters() if name in shared}
    for t in range(1, rounds + 1):
        total = {name: np.zeros(p.shape) for name, p in sent.items()}
        for i, (net, (x, y)) in enumerate(zip(clients, data, strict=True)):
            params = dict(net.train().named_parameters())
            for name, value in sent.items():
                params[name].data = value.clone()
            optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
            order = torch.from_numpy(stream(1, "local", t, i).permutation(len(y)))
            for batch in order.split(8):
                if len(batch) == 8:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(net(x[batch]), y[batch], reduction="none").mean().backward()
                    optimizer.step()
            for name, value in sent.items():
                total[name] += float(np.float32(1 / 3)) * (params[name].detach() - value).numpy()
        scale = sum([float(np.float32(1 / 3))] * 3)
        sent = {
            name: value + torch.from_numpy((total[name] / scale).astype(np.float32)) for name, value in sent.items()
        }
    for net in clients:
        for name, p in net.eval().named_parameters():
            p.data = sent.get(name, p.data)
    hits = [(net(x).argmax(1) == y).float().mean().item() for net, (x, y) in zip(clients, data, strict=True)]
    return clients, hits


@pytest.mark.parametrize(
    ("model", "settings", "stays"),
    [
        (Net, {"buffers": "local"}, lambda name: name.startswith("norm")),
        (Plain, {"personal": ["head"]}, lambda name: name.startswith("head")),
        (
            Net,
            {"buffers": "local", "personal": ["first.bias"]},
            lambda n: n.startswith("norm") or n == "first.bias",
        ),
    ],
    ids=["fedbn", "head", "both"],
)
def test_it_is_a_loop_in_plain_pytorch_to_the_bit(model: Any, settings: dict[str, Any], stays: Any) -> None:
    task = task_of(model, **settings)
    *_, end = simulate(Serial(task, LOCAL), FedAvg(), fs.Bernoulli(1.0), rounds=4, seed=1)
    nets, hits = loop(4, stays, model)
    clients = end.checkpoint.clients
    assert clients is not None
    for i, net in enumerate(nets):
        found = task.model(end.params, end.checkpoint.buffers, clients[i]).state_dict()
        assert all(torch.equal(found[name], value) for name, value in net.state_dict().items())
    np.testing.assert_allclose(fs.evaluate(task, end)["accuracy"], np.mean(hits), rtol=1e-6)
    scores = task.per_client(end.params, end.checkpoint.buffers, clients)
    np.testing.assert_allclose(scores["accuracy"], hits, rtol=1e-6)


def test_what_is_personal_is_no_part_of_what_is_sent() -> None:
    task, whole = task_of(buffers="local", personal=["head"]), task_of(buffers="frozen")
    assert task.d == 4 * 5 + 5
    assert whole.d == task.d + 2 * 5 + 5 * 3 + 3
    assert task.init(3).shape == (25,)
    assert task.personal == ("norm.weight", "norm.bias", "head.weight", "head.bias")
    assert task.own_buffers == ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked")
    both = np.concatenate([task.init(3), task.initial_state(3)["personal"]])
    assert sorted(both) == sorted(whole.init(3))  # drawn as if all were shared


def test_a_client_that_never_trained_is_scored_with_what_all_begin_with() -> None:
    task = task_of(Plain, personal=["head"])
    rows = fs.Trace(np.array([[1, 0, 1]]))
    *_, end = simulate(Serial(task, LOCAL), FedAvg(), rows, rounds=1, seed=1)
    clients = end.checkpoint.clients
    assert clients is not None
    assert sorted(clients) == [NEW, 0, 2]
    net = task.model(end.params, state=task.initial_state(1))
    x, y = samples()[1]
    due = (net(torch.from_numpy(x)).argmax(1).numpy() == y).mean()
    assert task.per_client(end.params, None, clients)["accuracy"][1] == pytest.approx(due)


def test_drift_prox_and_ridge_leave_the_personal_part_alone_or_count_it() -> None:
    task = task_of(Plain, personal=["head"], ridge=0.5)
    for strategy, local in ((Scaffold(), Local(0.1)), (FedStale(0.5), Local(0.1, prox=0.3))):
        *_, end = simulate(Serial(task, local), strategy, fs.Bernoulli(1.0), rounds=2)
        scores = fs.evaluate(task, end)
    clients = end.checkpoint.clients
    assert clients is not None
    plain = task_of(Plain, personal=["head"]).per_client(end.params, None, clients)["objective"]
    norms = [np.sum(end.params**2) + np.sum(clients[i]["personal"] ** 2) for i in range(3)]
    assert scores["objective"] == pytest.approx(np.mean(plain + 0.25 * np.array(norms)))


def test_engines_have_the_bits_of_serial() -> None:
    task = task_of(buffers="local", personal=["head"])
    with Pool(task, LOCAL, workers=1) as pool:
        check_engine(pool, rounds=2)
    with pytest.raises(
        BadInput, match="engine 'batched' cannot train parts of a client's own; use engine 'serial'"
    ):
        Batched(task, Local(0.1))
    assert make("auto", task, Local(0.1)).name != "batched"  # type: ignore[attr-defined]


def test_a_training_loop_of_ones_own_gets_the_clients_model() -> None:
    def own(model: Any, data: Any, context: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), context.rate, momentum=0.9)
        for x, y in data.batches():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y, reduction="none").mean().backward()
            optimizer.step()
        context.state["rounds"] = context.state.get("rounds", 0) + 1

    task, ends = task_of(buffers="local", personal=["head"]), []
    for local in (LOCAL, Local(0.1, epochs=1, batch=8, drop_last=True, train=own)):
        *_, end = simulate(Serial(task, local), FedAvg(), fs.Bernoulli(0.7), rounds=4, seed=1)
        ends.append(end)
    one, other = (end.checkpoint.clients for end in ends)
    assert one is not None
    assert other is not None
    assert np.array_equal(ends[0].params, ends[1].params)
    assert all(np.array_equal(one[i][key], other[i][key]) for i in one for key in ("personal", "buffers"))
    assert "loop" in other[0]


def test_a_run_goes_on_from_a_checkpoint_with_the_clients_own_parts(tmp_path: Path) -> None:
    task, folder = task_of(buffers="local", personal=["head"]), fs.lab.RunFolder(tmp_path)
    run = fs.Run(Serial(task, LOCAL), FedStale(0.5), fs.Bernoulli(0.6), rounds=6, seed=3)
    for s in simulate(run.engine, run.strategy, run.participation, rounds=6, seed=3):
        if s.t == 3:
            folder.save_checkpoint(s.checkpoint)
    kept = folder.load_checkpoint(first(checked(run)))
    assert kept.clients[NEW].keys() == {"personal", "buffers"}
    *_, again = simulate(run.engine, run.strategy, run.participation, rounds=6, seed=3, start=kept)
    one, other = s.checkpoint, again.checkpoint
    assert one.clients is not None
    assert other.clients is not None
    assert np.array_equal(one.params, other.params)
    assert all(np.array_equal(one.clients[i][k], other.clients[i][k]) for i in one.clients for k in one.clients[i])


def test_a_client_that_is_not_selected_keeps_what_it_had() -> None:
    task, rule = task_of(personal=["head"]), fs.strategies.PowerOfChoice(clients=1, candidates=3)
    before, changed = [task.initial_state(1)["personal"]] * task.n, set[int]()
    for s in simulate(Serial(task, LOCAL), rule, fs.Bernoulli(1.0), rounds=4, seed=1):
        assert s.checkpoint.clients is not None
        now = [s.checkpoint.clients.get(i, s.checkpoint.clients[NEW])["personal"] for i in range(task.n)]
        moved = {i for i in range(task.n) if not np.array_equal(before[i], now[i])}
        assert moved == set(s.clients.tolist())
        before, changed = now, changed | moved
    assert len(changed) > 1


def test_runs_are_stored_with_the_scores_of_the_clients_own_models(tmp_path: Path) -> None:
    task = task_of(buffers="local")
    found = fs.compare(
        task, ["fedavg"], fs.Bernoulli(0.7), rounds=4, local=LOCAL, out=tmp_path / "runs", engine="serial"
    )
    *_, end = simulate(Serial(task, LOCAL), FedAvg(), fs.Bernoulli(0.7), rounds=4, seed=1)
    run = found.runs[0]
    states = run.client_states()
    assert states is not None
    assert run.result()["accuracy"]["final"] == fs.evaluate(task, end)["accuracy"]
    assert np.array_equal(states[0]["personal"], end.checkpoint.clients[0]["personal"])  # type: ignore[index]
    due = task.per_client(end.params, None, end.checkpoint.clients)["accuracy"]
    np.testing.assert_allclose(run.clients()["accuracy"], due, rtol=1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"personal": "head"}, r'personal must be names of layers or parameters, such as \["head"\], got \'head\''),
        (
            {"personal": ["heads"]},
            "personal must name trained parameters, got 'heads'; the model has first, norm, h",
        ),
        ({"personal": ["first", "norm", "head"]}, "a parameter must be shared by all clients, got none besides"),
        ({"personal": ["head"], "central_test": samples()[0]}, "scored on the samples of their own clients"),
        ({"buffers": "own"}, "buffers must be 'average' or 'local' or 'frozen', got 'own'"),
    ],
)
def test_nonsense_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        Supervised(Net, samples(), **settings)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(BadInput, match="buffers 'local' needs layers such as BatchNorm, got a model without"):
        task_of(Plain, buffers="local")
    task = task_of(Plain, personal=["head"])
    with pytest.raises(BadInput, match=r"each client has its own part of this model \(head.weight, head.bias, …\)"):
        task.evaluate(task.init(0))
    with pytest.raises(BadInput, match="which must be given beside the parameters"):
        task.model(task.init(0))
    reply = Serial(task, LOCAL).train([Job(task.init(0), np.arange(3), 0, 1, LOCAL)])[0]
    assert reply.updates.shape == (3, task.d)
