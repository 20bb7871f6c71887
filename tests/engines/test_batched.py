from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedstale.core import Array, BadInput, Job, Local
from fedstale.core.rng import key, stream
from fedstale.core.schedules import UniformSteps
from fedstale.engines import ENGINES, Serial, make
from fedstale.engines.auto import Auto
from fedstale.engines.batched import chunks as chunking
from fedstale.engines.batched import engine as batched
from fedstale.engines.batched.chunks import chunks, filled
from fedstale.engines.batched.compiled import Compiled
from fedstale.engines.batched.compiled import Linear as LinearKernel
from fedstale.engines.batched.dense import Dense
from fedstale.engines.batched.engine import Batched
from fedstale.participation.bernoulli import Bernoulli
from fedstale.simulate import simulate
from fedstale.strategies.fedstale import FedStale
from fedstale.tasks.local import minibatches
from fedstale.tasks.models import CNN, MLP, Linear
from fedstale.tasks.quadratic import Quadratic
from fedstale.tasks.split import Split
from fedstale.tasks.supervised import Batch, Supervised
from fedstale.testing import check_engine
from tests.engines.tasks_for_engines import images, vectors

LOCAL = Local(0.05, steps=4, batch=16)
needs_numba = pytest.mark.skipif(chunking.load("linear") is None, reason="numba is not installed")


class Odd(nn.Module):
    """A model without a closed form: a product of two layers, one of them without a bias, tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(8, 4), nn.Linear(8, 4, bias=False), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.a(x)) * self.b(x))


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 3), nn.Dropout(0.5))


class Branching(nn.Module):
    """Its path depends on the numbers, which no batch can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.out(x)
        return out * 2 if float(out.detach().sum()) > 0 else out


class Doubled(nn.Linear):
    """Looks like a linear layer and is none."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize("ridge", [0.0, 0.1])
@pytest.mark.parametrize("model", [Linear(), MLP((7,)), MLP((6, 5))])
def test_closed_forms_equal_the_reference(model: Linear | MLP, ridge: float) -> None:
    check_engine(Batched(vectors(model, ridge), LOCAL), rounds=10, tolerance=1e-4)


@pytest.mark.parametrize("model", [Linear(), MLP((7,)), MLP((6, 5))])
@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_dense_models_do_without_numba(model: Linear | MLP, ridge: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (batched, chunking):
        monkeypatch.setattr(module, "load", lambda name: None)
    engine = Batched(vectors(model, ridge), LOCAL)
    assert isinstance(engine._kernel, Dense)
    check_engine(engine, rounds=10, tolerance=1e-4)


@needs_numba
@given(
    seed=st.integers(0, 2**32),
    held=st.lists(st.integers(1, 300), min_size=1, max_size=5),
    batch=st.integers(1, 70),
    steps=st.integers(1, 6),
)
def test_compiled_draws_are_those_of_numpy(seed: int, held: list[int], batch: int, steps: int) -> None:
    keys = np.frombuffer(b"".join(key(seed, "local", 7, i) for i in range(len(held))), np.uint64).reshape(-1, 2)
    sizes, local = np.minimum(held, batch), Local(0.1, steps, batch)
    drawn = np.full((steps, len(held), batch), -1)
    chunking.load("linear").draw(keys, np.array(held), sizes, drawn)
    for i, size in enumerate(held):
        due = minibatches(size, local, stream(seed, "local", 7, i))
        np.testing.assert_array_equal(drawn[:, i, : sizes[i]], due)
        assert (drawn[:, i, sizes[i] :] == -1).all()


@needs_numba
@pytest.mark.parametrize("size", [2**16 - 1, 2**16, 2**16 + 1])
def test_compiled_draws_of_many_samples(size: int) -> None:
    keys = np.frombuffer(key(3, "local", 1, 0), np.uint64).reshape(1, 2)
    drawn = np.empty((1, 1, size), np.int64)
    chunking.load("linear").draw(keys, np.array([size]), np.array([size]), drawn)
    np.testing.assert_array_equal(drawn[0, 0], stream(3, "local", 1, 0).permutation(size))


@needs_numba
def test_linear_models_move_by_prox_and_drift_in_compiled_loops() -> None:
    task = vectors(Linear(), 0.1)
    local, drift = (
        Local(0.05, steps=4, batch=7, prox=0.3),
        stream(0, "drift").standard_normal((6, task.d), np.float32),
    )
    jobs = [Job(task.init(s), np.arange(6), s, 2, local, drift) for s in (0, 1)]
    assert isinstance(Batched(task, local)._kernel, LinearKernel)
    for reply, due in zip(Batched(task, local).train(jobs), Serial(task, local).train(jobs), strict=True):
        np.testing.assert_allclose(reply.updates, due.updates, rtol=0, atol=1e-6)
        np.testing.assert_allclose(reply.losses, due.losses, rtol=1e-5)


@needs_numba
@pytest.mark.parametrize(
    "local",
    [
        replace(LOCAL, momentum=0.9),
        replace(LOCAL, momentum=0.9, prox=0.3, weight_decay=0.1),
        replace(LOCAL, prox=0.3, weight_decay=0.1),
        Local(0.05, epochs=2, batch=7, drop_last=True),
        Local(0.05, batch=16, work=UniformSteps(1, 4)),
    ],
    ids=["momentum", "momentum and more", "prox and weight decay", "epochs", "uneven work"],
)  # fmt: skip
@pytest.mark.parametrize("drifts", [False, True])
@pytest.mark.parametrize("model", [MLP((7,)), MLP((33, 16, 20))])
def test_every_setting_of_an_mlp_in_compiled_loops_equals_the_reference(
    model: MLP, local: Local, drifts: bool
) -> None:
    task, who = vectors(model, 0.1), np.array([2, 3, 5]) if local.epochs else np.arange(6)
    drift = stream(0, "drift").standard_normal((len(who), task.d), np.float32) if drifts else None
    jobs = [Job(task.init(s), who, s, 2, local, drift) for s in (0, 1)]
    engine = Batched(task, LOCAL)
    assert isinstance(engine._kernel, Compiled)
    for reply, due in zip(engine.train(jobs), Serial(task, LOCAL).train(jobs), strict=True):
        np.testing.assert_allclose(reply.updates, due.updates, rtol=0, atol=2e-6)
        np.testing.assert_allclose(reply.losses, due.losses, rtol=1e-5)


@needs_numba
def test_an_mlp_meets_its_samples_in_parts_where_they_do_not_fit_the_cache() -> None:
    rng = stream(0, "wide")
    data = [(rng.standard_normal((30, 5000), np.float32), rng.integers(0, 3, 30))]
    check_engine(
        Batched(Supervised(partial(MLP((9,)).build, (5000,), 3), data), Local(0.01, 2, 26)),
        rounds=2,
        tolerance=1e-4,
    )


@needs_numba
def test_matrices_beyond_the_cache_are_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "LARGEST", 8 * 7)
    assert isinstance(Batched(vectors(MLP((7,))), LOCAL)._kernel, Compiled)
    assert isinstance(Batched(vectors(MLP((8,))), LOCAL)._kernel, Dense)


@needs_numba
def test_certain_and_huge_outputs_stay_finite_in_compiled_loops() -> None:
    task = vectors(Linear())
    params = 1e4 * stream(0, "params").standard_normal(task.d, np.float32)
    job = Job(params, np.arange(6), 0, 1, LOCAL)
    reply, due = Batched(task, LOCAL).train([job])[0], Serial(task, LOCAL).train([job])[0]
    np.testing.assert_allclose(reply.losses, due.losses, rtol=1e-4)
    np.testing.assert_allclose(reply.updates, due.updates, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("model", [Odd, lambda: Doubled(8, 3), lambda: nn.Linear(8, 3, bias=False)])
def test_other_modules_equal_the_reference(model: type[nn.Module]) -> None:
    check_engine(Batched(vectors(model, 0.1), LOCAL), rounds=5, tolerance=1e-4)


def test_convolutions_equal_the_reference() -> None:
    check_engine(Batched(images(), LOCAL), rounds=3, tolerance=1e-4)


def test_linear_model_of_images_is_flattened() -> None:
    check_engine(Batched(images(Linear()), LOCAL), rounds=3, tolerance=1e-4)


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("matrices", [False, True])
def test_quadratics_equal_the_reference(noise: float, matrices: bool) -> None:
    task = Quadratic.random(5, 4, noise=noise)
    if matrices:
        half = np.random.default_rng(0).standard_normal((5, 4, 4))
        task = Quadratic(task.centers, half @ half.transpose(0, 2, 1), noise=noise)
    check_engine(make("batched", task, Local(0.1, steps=3)), rounds=20, tolerance=1e-6)


@pytest.mark.parametrize("model", [Linear(), MLP((7,)), Odd])
def test_fifty_rounds_end_where_the_reference_ends(model: Linear | MLP | type[nn.Module]) -> None:
    task = vectors(model, 0.01)
    ends = []
    for engine in (Serial(task, LOCAL), Batched(task, LOCAL)):
        *_, last = simulate(engine, FedStale(0.5), Bernoulli(0.5), rounds=50, seed=3)
        ends.append(last.params)
    assert np.abs(ends[0] - ends[1]).max() <= 1e-5 * np.abs(ends[0]).max()


def test_jobs_of_other_seeds_rates_and_cohorts_advance_together() -> None:
    task = vectors(MLP((7,)))
    every, some = np.arange(6), np.array([0, 3, 5])
    other = Local(0.02, steps=2, batch=4, prox=0.5)
    jobs = [Job(task.init(s), who, s, t, local) for s, t, who, local in
            [(0, 1, every, LOCAL), (0, 1, some, LOCAL), (0, 1, every, Local(0.01, 4, 16)), (1, 1, every, LOCAL),
             (0, 2, some, LOCAL), (0, 1, some, other), (0, 1, every[:0], LOCAL)]]  # fmt: skip
    for reply, due in zip(Batched(task, LOCAL).train(jobs), Serial(task, LOCAL).train(jobs), strict=True):
        assert reply.updates.shape == due.updates.shape
        np.testing.assert_allclose(reply.updates, due.updates, rtol=0, atol=1e-6 * np.abs(task.init(0)).max())
        np.testing.assert_allclose(reply.losses, due.losses, rtol=1e-5)


def test_jobs_of_one_seed_share_their_draws() -> None:
    task = vectors()
    jobs = [Job(task.init(0), np.array([1, 4]), 0, 1, LOCAL), Job(task.init(0), np.array([4, 5]), 0, 1, LOCAL)]
    made = list(chunks(jobs, task.train.offsets, lambda b, sharers: 100, min))
    assert sorted((c.sharers, c.rows.tolist()) for c in made) == [(1, [0]), (1, [3]), (2, [1, 2])]


def test_chunks_hold_similar_draws_and_have_room_for_them() -> None:
    task = vectors()
    jobs = [Job(task.init(0), np.arange(6), 0, 1, LOCAL)]  # batches of 3, 5, 16, 16, 16, 16

    def sizes(room: int, wide: Callable[[int, int], int], batch: int = 16) -> list[list[int]]:
        made = [job._replace(local=Local(0.1, 4, batch)) for job in jobs]
        parts = chunks(made, task.train.offsets, lambda b, sharers: room, wide)
        return [[draw.size for draw in chunk.draws] for chunk in parts]

    assert sizes(100, min) == [[3], [5], [16, 16, 16, 16]]
    assert sizes(100, min, batch=5) == [[3], [5, 5, 5, 5, 5]]
    assert sizes(100, filled, batch=21) == [[3], [5], [20, 20, 21, 21]]
    assert sizes(10, filled) == [[3], [5], [16, 16], [16, 16]]  # enough for two threads
    assert sizes(1, filled) == [[3], [5], [16], [16], [16], [16]]


@given(st.integers(1, 300), st.integers(1, 300))
def test_draws_are_filled_up_by_less_than_a_third(size: int, batch: int) -> None:
    size = min(size, batch)
    wide = filled(size, batch)
    assert max(size, 2) <= wide <= max(batch, 2)
    assert 3 * wide // 4 < size or wide == 2
    assert filled(batch, batch) == max(batch, 2)


COMPANY = {
    "cnn": images(),
    "wide cnn": images(CNN(channels=(16, 32), hidden=(64,))),
    "mlp": vectors(MLP((7,)), 0.1),
    "linear": vectors(Linear()),
}


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", COMPANY)
@settings(max_examples=10)
@given(data=st.data(), batch=st.sampled_from([1, 2, 5, 16]))
def test_numbers_do_not_depend_on_company(name: str, compiled: bool, data: st.DataObject, batch: int) -> None:
    """A client's bits are the same alone and beside any other clients and jobs, whatever their sizes."""
    task, local = COMPANY[name], Local(0.05, steps=2, batch=batch)
    clients = st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True).map(
        lambda ids: np.array(sorted(ids))
    )
    groups = data.draw(st.lists(st.tuples(st.integers(0, 1), clients), min_size=1, max_size=5))
    jobs = [Job(task.init(k), who, seed, 1, local) for k, (seed, who) in enumerate(groups)]
    with pytest.MonkeyPatch.context() as patch:
        for module in (batched, chunking) if not compiled else ():
            patch.setattr(module, "load", lambda name: None)
        engine = Batched(task, local)
        for job, reply in zip(jobs, engine.train(jobs), strict=True):
            for k, client in enumerate(job.clients):
                alone = engine.train([job._replace(clients=np.array([client]))])[0]
                np.testing.assert_array_equal(alone.updates[0], reply.updates[k])
                assert alone.losses[0] == reply.losses[k]


def test_numbers_do_not_depend_on_threads() -> None:
    task = vectors(MLP((7,)))
    jobs = [Job(task.init(s), np.arange(6), s, 1, LOCAL) for s in range(3)]
    before, replies = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            replies.append(Batched(task, LOCAL).train(jobs))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for one, three in zip(*replies, strict=True):
        np.testing.assert_array_equal(one.updates, three.updates)


@pytest.mark.parametrize(("model", "why"), [(dropout, "draws"), (Branching, "cannot batch this model")])
def test_what_does_not_fit_is_refused(model: type[nn.Module], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        make("batched", vectors(model), LOCAL)


@pytest.mark.parametrize(("kind", "name"), [("Scaled", "gradient"), ("FirstSample", "batches")])
def test_what_a_task_does_itself_is_obeyed_or_refused(kind: str, name: str) -> None:
    """Batched computes batches and gradients itself, so it refuses; auto takes an engine that obeys."""
    task = globals()[kind](Linear, vectors().train)
    with pytest.raises(BadInput, match=f"would ignore what {kind} does in {name}; use engine 'serial' or 'pool'"):
        Batched(task, LOCAL)
    engine = make("auto", task, LOCAL)
    assert isinstance(engine, Auto)
    job = Job(task.init(0), np.arange(6), 0, 1, LOCAL)
    np.testing.assert_array_equal(engine.train([job])[0].updates, Serial(task, LOCAL).train([job])[0].updates)


def test_method_of_one_object_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    task = vectors()
    monkeypatch.setattr(task, "batches", lambda client, local, rng: iter(()))
    with pytest.raises(BadInput, match="batches"):
        Batched(task, LOCAL)


class Scaled(Supervised):
    def __init__(self, model: type[Linear], train: Split) -> None:
        super().__init__(partial(model().build, (8,), 3), train)

    def gradient(self, params: Array, client: int, batch: Batch) -> tuple[float, Array]:
        loss, gradient = super().gradient(params, client, batch)
        return loss, 2 * gradient


class FirstSample(Scaled):
    """Every step uses the client's first sample: the gradients of a batch are as they were."""

    gradient = Supervised.gradient

    def batches(self, client: int, local: Local, rng: np.random.Generator) -> Iterator[Batch]:
        first = torch.tensor([int(self.train.offsets[client])])
        return iter([Batch(first, None)] * local.steps)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(BadInput, match="did you mean 'batched'"):
        make("batchd", vectors(), LOCAL)


@pytest.mark.parametrize("name", ENGINES)
def test_what_is_no_task_or_no_local_training_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="an engine needs a task, got Local"):
        make(name, LOCAL, vectors())  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"local must be Local\(lr=…\), got 0.1"):
        make(name, vectors(), 0.1)  # type: ignore[arg-type]


def test_a_pool_takes_no_task_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    task = vectors()
    monkeypatch.setattr(task, "device", torch.device("cuda"))
    with pytest.raises(BadInput, match="engine 'pool' trains on CPUs, got a task on cuda; use 'serial'"):
        make("pool", task, LOCAL)


def test_width_is_bounded_by_memory() -> None:
    task = vectors()
    assert Batched(task, LOCAL).width == 64
    task.n = 10**9
    assert Batched(task, LOCAL).width == 1


def test_every_engine_is_described() -> None:
    assert all(about for about in ENGINES.values())
