"""Aggregation and memory on a device: the numbers of numpy within a tolerance, and nothing travels for a client.

Our machines have no GPU. The same code runs on torch's CPU; on its device `meta`, where every transfer is counted;
and on a CPU without float64, as Apple's GPUs are.
"""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import fedstale as fs
from fedstale.core import DeviceArray, Hooks, Round, hooks_of, on_host, part
from fedstale.engines.batched.engine import Batched
from fedstale.lab.execute import execute
from fedstale.lab.plan import plan
from fedstale.lab.probes import Tracer
from fedstale.lab.runs.store import open_store
from fedstale.lab.schema import check
from fedstale.memory import Memory, OnDevice
from fedstale.privacy.ledger import Privacy
from fedstale.simulate import Interrupted, Run, checked
from fedstale.strategies import (
    MIFA,
    Clipped,
    Extrapolated,
    FedExP,
    FedVARP,
    Krum,
    PrivateFedAvg,
    Scaffold,
    SelfTuning,
    Unbiased,
)

TOLERANCE = 1e-5  # of the largest parameter, as docs/guides/engines.md says
META = torch.device("meta")
LOCAL = fs.Local(lr=0.1, steps=3, batch=5)
HALF = fs.Bernoulli(0.5)
RULES = {
    "fedavg": fs.FedAvg(), "unbiased": Unbiased(), "fedstale": fs.FedStale(0.5), "fedvarp": FedVARP(),
    "mifa": MIFA(), "auto": SelfTuning(), "auto-unbiased": SelfTuning(unbiased=True),
}  # fmt: skip
MEMBERS = 8


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def task(model: Any = mlp, aggregate: str = "device", **settings: Any) -> fs.Supervised:
    rng = np.random.default_rng(1)
    samples = [(rng.standard_normal((20, 6), np.float32), rng.integers(0, 3, 20)) for _ in range(MEMBERS)]
    return fs.Supervised(
        model, samples, test=samples, weights=rng.random(MEMBERS) + 0.2, aggregate=aggregate, **settings
    )


def played(
    rule: Any, engine: str = "serial", rounds: int = 30, p: float = 0.3, **settings: Any
) -> list[fs.core.Snapshot]:
    made = fs.engine(engine, task(**settings), LOCAL)
    return list(fs.simulate(made, rule, fs.Bernoulli(p), rounds=rounds, seed=3))


def params(snapshots: list[fs.core.Snapshot]) -> np.ndarray:
    return np.array([s.params for s in snapshots])


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_a_rule_on_the_device_has_the_numbers_of_numpy_within_the_tolerance(rule: Any, engine: str) -> None:
    got, due = params(played(rule, engine)), params(played(rule, engine, aggregate="cpu"))
    assert np.abs(got - due).max() < TOLERANCE * np.abs(due).max()


@pytest.mark.parametrize("settings", [{"ridge": 0.1}, {"model": normed}], ids=["ridge", "buffers"])
def test_ridge_and_averaged_buffers_too(settings: dict[str, Any]) -> None:
    got, due = played(RULES["auto"], **settings), played(RULES["auto"], aggregate="cpu", **settings)
    assert np.abs(params(got) - params(due)).max() < TOLERANCE * np.abs(params(due)).max()
    for here, there in zip(got, due, strict=True):
        np.testing.assert_allclose(here.losses, there.losses, rtol=1e-4)
        if due[-1].checkpoint.buffers is not None:
            np.testing.assert_allclose(here.checkpoint.buffers, there.checkpoint.buffers, rtol=1e-4, atol=1e-5)


def test_updates_that_are_not_finite_are_refused() -> None:
    rng = np.random.default_rng(1)
    samples = [(rng.standard_normal((20, 6), np.float32), rng.integers(0, 3, 20)) for _ in range(3)]
    samples[1][0][:] *= 1e38
    there = fs.Supervised(mlp, samples, aggregate="device")
    (s,) = fs.simulate(fs.Serial(there, LOCAL), fs.FedAvg(), fs.Bernoulli(1.0), rounds=1)
    assert (s.clients.tolist(), s.refused.tolist()) == ([0, 2], [1])


class Transfers(TorchDispatchMode):
    """Counts the floats of each transfer to the device `meta`, and the numbers of each one back, which are ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.up: list[int] = []
        self.down: list[int] = []

        def cpu(tensor: Tensor) -> Tensor:
            if tensor.device == META:
                self.down.append(tensor.numel())
            return torch.ones(tensor.shape, dtype=tensor.dtype)

        monkeypatch.setattr(Tensor, "cpu", cpu)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        sources = [x for x in args if isinstance(x, Tensor)]
        there = isinstance(made, Tensor) and made.device == META and made.is_floating_point()
        if there and any(x.device != META for x in sources):
            self.up.append(max(x.numel() for x in sources if x.device != META))
        return made


def on_meta(monkeypatch: pytest.MonkeyPatch, engine: str, aggregate: str = "device") -> fs.core.Engine:
    """An engine as it would be on a GPU."""
    made = task(aggregate=aggregate)
    made.device, made.train = META, made.train.to(META)
    monkeypatch.setattr(Batched, "_try", lambda self: None)
    return fs.engine(engine, made, LOCAL)


@pytest.mark.parametrize(("engine", "name"), [("serial", "auto"), *(("batched", name) for name in RULES)])
def test_the_model_travels_once_each_way_in_a_round_however_many_clients_train(
    engine: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, rounds = on_meta(monkeypatch, engine), 3
    d = there.task.d
    with Transfers(monkeypatch) as moves:
        snapshots = list(fs.simulate(there, RULES[name], fs.Bernoulli(0.7), rounds=rounds, seed=3))
    assert min(len(s.clients) for s in snapshots) > 2
    made = [d] if engine == "serial" else []  # where the working copy of the model is made, once
    assert [size for size in moves.up if size >= d] == made + [d] * rounds
    assert [size for size in moves.down if size >= d] == [d] * rounds


def test_updates_that_come_back_would_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    there = on_meta(monkeypatch, "serial", aggregate="cpu")
    with Transfers(monkeypatch) as moves:
        (s,) = fs.simulate(there, fs.FedAvg(), fs.Bernoulli(0.9), rounds=1, seed=3)
    assert len([size for size in moves.down if size >= there.task.d]) == len(s.clients) > 2


class Single(TorchDispatchMode):
    """No float64, as on Apple's GPUs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return made


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_no_float64_is_needed(rule: Any) -> None:
    made = fs.engine("serial", task(), LOCAL)
    with Single():
        with pytest.raises(TypeError, match="float64"):
            torch.ones(2, dtype=torch.float64)
        list(fs.simulate(made, rule, HALF, rounds=3, seed=3))


@pytest.mark.parametrize("name", ["fedavg", "auto"])
def test_the_bits_do_not_depend_on_the_number_of_threads(name: str) -> None:
    wide, found, before = 1 << 16, [], torch.get_num_threads()  # numbers that torch would divide between threads
    rng = np.random.default_rng(0)
    rounds = [rng.standard_normal((3, wide), np.float32) for _ in range(3)]
    place = OnDevice(place=DeviceArray(torch.zeros(0)))
    rule: Any = copy.copy(RULES[name])
    if "memory" in vars(rule):
        object.__setattr__(rule, "memory", place)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            state = rule.init(4, wide)
            for t, updates in enumerate(rounds, 1):
                even = np.full(4, 0.25, np.float32)
                there: Any = DeviceArray(torch.from_numpy(updates))
                r = Round(
                    t, np.zeros(wide, np.float32), np.arange(3), there, np.ones((3, 1), bool), even[:3], even, even
                )
                step, state = rule.aggregate(state, r)
        finally:
            torch.set_num_threads(before)
        found.append(on_host(step))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_the_sum_forgets_large_old_rows() -> None:
    """Rows that shrink by 10⁶: float32 sums of changes alone would keep the rounding of the first ones."""
    memory = Memory.zeros(4, 50, OnDevice(place=DeviceArray(torch.zeros(0))))
    rng, weights = np.random.default_rng(0), np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    for t in range(1, 60):
        there: Any = DeviceArray(torch.from_numpy(rng.standard_normal((2, 50), np.float32) * np.float32(0.8**t)))
        clients, one = np.sort(rng.choice(4, 2, replace=False)), np.ones(2, np.float32)
        memory.remember(Round(t, one, clients, there, np.ones((2, 1), bool), one, weights, weights))
    got, due = on_host(memory.weighted_sum(weights)), weights.astype(np.float64) @ memory.rows
    assert np.abs(got - due).max() < 1e-4 * np.abs(due).max()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_run_that_goes_on_from_a_checkpoint_has_the_same_bits(rule: Any) -> None:
    engine, whole = fs.Serial(task(), LOCAL), played(rule, rounds=12)
    for s in fs.simulate(engine, rule, fs.Bernoulli(0.3), rounds=5, seed=3):
        start = s.checkpoint
    rest = list(fs.simulate(engine, rule, fs.Bernoulli(0.3), rounds=12, seed=3, start=start))
    np.testing.assert_array_equal(params(rest), params(whole[5:]))


RAW: dict[str, Any] = {
    "name": "try", "rounds": 9, "seeds": [1], "engine": "serial", "algorithms": ["fedavg", "fedstale", "auto"],
    "data": {"dataset": "digits", "clients": 6, "fraction": 0.1}, "local": {"lr": 0.1, "steps": 2},
    "model": {"kind": "linear", "aggregate": "device"}, "participation": {"kind": "bernoulli", "p": 0.7},
}  # fmt: skip


def test_stored_runs_that_were_stopped_or_killed_go_on_with_the_same_bits(tmp_path: Path) -> None:
    experiment = check(RAW)
    never, stopped, killed = (
        plan(experiment, open_store(tmp_path / name)) for name in ("never", "stopped", "killed")
    )
    list(execute(experiment, never))
    for k in range(len(never)):
        asked = iter([False] * 4 + [True])
        with pytest.raises(Interrupted):
            list(execute(experiment, stopped[k : k + 1], stop=lambda: next(asked)))  # noqa: B023
        for progress in execute(experiment, killed[k : k + 1], checkpoint_seconds=0.0):
            if progress.t == 5:
                break  # nothing is saved after the last checkpoint
    for every in (stopped, killed):
        assert not any(p.folder.finished for p in every)
        list(execute(experiment, every, resume=True))
        assert [p.folder.metrics() for p in every] == [p.folder.metrics() for p in never]
        results = [[p.folder.result()["fingerprint"] for p in runs] for runs in (every, never)]
        assert results[0] == results[1]
        assert len({*results[0]}) == len(never)


def test_runs_on_the_device_have_a_key_of_their_own_and_others_have_theirs(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    there, here = (
        plan(check(RAW | {"model": {"kind": "linear", **more}}), store) for more in ({"aggregate": "device"}, {})
    )
    named = plan(check(RAW | {"model": {"kind": "linear", "aggregate": "cpu"}}), store)
    assert [p.folder.path for p in here] == [p.folder.path for p in named]
    assert "aggregate" not in here[0].config["model"]
    assert not {p.folder.path for p in here} & {p.folder.path for p in there}


def test_realised_weights_are_traced() -> None:
    for rule in RULES.values():
        weights = [
            [s.checkpoint.state.weights for s in played(Tracer(rule), rounds=8, aggregate=where)]
            for where in ("device", "cpu")
        ]
        np.testing.assert_allclose(weights[0], weights[1], rtol=1e-4, atol=1e-6)


@part
class Passing:
    """A wrapper of one's own."""

    strategy: fs.core.Strategy

    def hooks(self) -> Hooks:
        return hooks_of(self.strategy)

    def init(self, n: int, d: int) -> Any:
        return self.strategy.init(n, d)

    def aggregate(self, state: Any, r: Round) -> Any:
        return self.strategy.aggregate(state, r)


REFUSED = {
    "FedExP": (FedExP(), {}),
    "Krum": (Krum(), {}),
    "Scaffold": (Scaffold(), {}),
    "Clipped": (Clipped(fs.FedStale(0.5), 1.0), {}),
    "Extrapolated": (Extrapolated(fs.FedAvg()), {}),
    "Passing": (Passing(fs.FedAvg()), {}),
    "memory .*Int8": (fs.FedStale(0.5, fs.memory.Int8()), {}),
    "memory .*rows": (MIFA(fs.memory.Float32(folder="rows")), {}),
    "memory .*AtClients": (MIFA(fs.memory.AtClients()), {}),
    "a defence": (fs.FedAvg(), {"defence": fs.defence.Defence()}),
    "liars": (fs.FedAvg(), {"liars": fs.defence.Liars((0,))}),
    "privacy": (PrivateFedAvg(1.0), {"privacy": Privacy(noise=1.0)}),
    r"parts of updates \(Packets": (Unbiased(), {"channel": fs.channels.Packets(4, 0.2)}),
    "a clock that does not wait": (
        fs.FedAvg(), {"clock": fs.clock.Clock(fs.clock.Buffer(2, 3), round_seconds=600.0)}
    ),
    "local.train": (fs.FedAvg(), {"local": fs.Local(lr=0.1, train="tests.memory.test_device:loop")}),
}  # fmt: skip


def loop(model: Any, data: Any, local: Any, context: Any) -> None:
    """A training loop of one's own."""


@pytest.mark.parametrize(("got", "rule", "more"), [(k, *v) for k, v in REFUSED.items()], ids=[*REFUSED])
def test_what_needs_updates_elsewhere_is_refused_by_name_before_round_1(
    got: str, rule: Any, more: dict[str, Any]
) -> None:
    run = Run(fs.Serial(task(), LOCAL), rule, HALF, rounds=2, **more)
    with pytest.raises(fs.BadInput, match=f'aggregate = "device": fedavg, .* got .*{got}'):
        checked(run)
    here = run._replace(engine=fs.Serial(task(aggregate="cpu"), LOCAL))
    checked(here)  # it is the device that cannot


def test_more_is_refused_with_the_task_or_the_engine() -> None:
    with pytest.raises(fs.BadInput, match="aggregate must be 'cpu' or 'device', got 'gpu'"):
        task(aggregate="gpu")
    with pytest.raises(fs.BadInput, match="personal parts"):
        checked(Run(fs.Serial(task(personal=["2"]), LOCAL), fs.FedAvg(), HALF, rounds=2))
    for name, kind in (("pool", fs.engines.Pool), ("ray", fs.engines.Ray)):  # by themselves, and by their names
        allowed = f"aggregate = 'device' needs engine 'serial', 'batched' or 'auto', got '{name}'"
        with pytest.raises(fs.BadInput, match=allowed):
            kind(task(), LOCAL)
        with pytest.raises(fs.BadInput, match=allowed):
            fs.engine(name, task(), LOCAL)
    with pytest.raises(fs.BadInput, match="device must be one that torch can use here, such as cpu, got 'cuda:99'"):
        task(device="cuda:99")
    with pytest.raises(fs.BadInput, match="aggregate"):
        check(RAW | {"model": {"kind": "linear", "aggregate": "gpu"}})


def test_a_gradient_of_ones_own_is_refused_before_anybody_trains() -> None:
    class Doubled(fs.Supervised):
        def gradient(self, params: Any, client: int, batch: Any) -> Any:
            raise AssertionError("nobody trains")

    rng = np.random.default_rng(1)
    own = Doubled(mlp, [(rng.standard_normal((20, 6), np.float32), rng.integers(0, 3, 20))], aggregate="device")
    with pytest.raises(fs.BadInput, match="needs steps of ours, got a gradient or a loop of Doubled"):
        list(fs.simulate(fs.Serial(own, LOCAL), fs.FedAvg(), HALF, rounds=1))


def test_a_device_that_is_full_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensor: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    memory = Memory.zeros(4, 5, OnDevice(place=DeviceArray(torch.zeros(0))))
    monkeypatch.setattr(Tensor, "clone", full)
    with pytest.raises(
        fs.BadInput, match=r"no more than 0 rows of 5 numbers fit on the device \(CUDA out of memory"
    ):
        memory.kept.take(np.arange(2))


def test_auto_takes_an_engine_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstale.engines.auto.cores", lambda: 8)
    monkeypatch.setattr("fedstale.engines.auto.WORTH", 0.0)
    monkeypatch.setattr("fedstale.engines.auto.MESSAGE", 0.0)
    engine: Any = fs.engine("auto", task(model=normed), LOCAL)
    assert engine.name == "serial"
    made = list(fs.simulate(engine, RULES["auto"], HALF, rounds=2, seed=3))
    assert len(made) == 2
