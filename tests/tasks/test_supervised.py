import pickle
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedstale.core import BadInput, Job, Local, buffered
from fedstale.core.rng import stream
from fedstale.engines import Serial
from fedstale.engines.kernels import load
from fedstale.participation.bernoulli import Bernoulli
from fedstale.simulate import simulate
from fedstale.strategies.fedavg import FedAvg
from fedstale.tasks.evaluation import EVALUATION_BATCH
from fedstale.tasks.flat import draw
from fedstale.tasks.local import minibatches
from fedstale.tasks.models import CNN, MLP, Linear
from fedstale.tasks.split import Split, by_samples
from fedstale.tasks.supervised import Batch, Supervised

SIZES, LOCAL = (20, 7, 33), Local(0.1, steps=4, batch=8)
mlp = partial(MLP(hidden=(6,)).build, (5,), 3)


def pairs(sizes, seed=0, shape=(5,), classes=3):
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((k, *shape)).astype(np.float32), rng.integers(0, classes, k)) for k in sizes]


def named(task, params):
    """The flat vector as what functional_call takes."""
    return {slot.name: torch.tensor(params[slot.where]).view(slot.shape) for slot in task.slots}


def filled(task, params):
    """A plain module of these parameters."""
    module = task.module()
    module.load_state_dict(named(task, params), strict=False)
    return module


def autograd(task, params, x, y, ridge=0.0):
    """Loss and gradient by torch alone."""
    module = filled(task, params)
    penalty = sum((p**2).sum() for p in module.parameters() if p.requires_grad)
    loss = functional.cross_entropy(module(torch.tensor(x)), torch.tensor(y)) + ridge / 2 * penalty
    loss.backward()
    return loss.item(), np.concatenate([p.grad.flatten() for p in module.parameters() if p.requires_grad])


@pytest.fixture
def task():
    return Supervised(mlp, pairs(SIZES), pairs((9, 0, 4), seed=1))


@pytest.mark.parametrize("call", ["evaluate", "per_client", "model"])
def test_parameters_of_another_size_are_refused(task, call):
    for wrong in (np.zeros(3, np.float32), (1, 2)):
        with pytest.raises(BadInput, match=r"^params must be an array \(57,\), such as s.params, got"):
            getattr(task, call)(wrong)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("model", [mlp, partial(CNN((4,), 3, (6,)).build, (2, 5, 5), 3)], ids=["mlp", "cnn"])
def test_gradient_is_autograds(model, ridge):
    data = pairs(SIZES, shape=(5,) if model is mlp else (2, 5, 5))
    task = Supervised(model, data, ridge=ridge)
    for seed, client in enumerate((1, 2, 0)):
        params = task.init(seed)
        for batch in task.batches(client, LOCAL, stream(0, client)):
            rows = batch.rows.numpy() - task.train.offsets[client]
            loss, gradient = task.gradient(params, client, batch)
            expected = autograd(task, params, *(part[rows] for part in data[client]), ridge=ridge)
            assert loss == pytest.approx(expected[0], rel=1e-5)
            assert np.allclose(gradient, expected[1], atol=1e-6)
            assert gradient.dtype == np.float32


def test_batches_are_the_clients_own_rows(task):
    for client, size in enumerate(SIZES):
        batches = list(task.batches(client, LOCAL, stream(0, "b")))
        expected = task.train.offsets[client] + minibatches(size, LOCAL, stream(0, "b"))
        assert np.array_equal([batch.rows for batch in batches], expected)
        assert all(batch.seed is None for batch in batches)


def test_serial_equals_a_naive_loop_over_three_rounds():
    data, seed = pairs(SIZES), 5
    task = Supervised(mlp, data, weights=by_samples)
    runs = simulate(Serial(task, LOCAL), FedAvg(), Bernoulli(0.7), rounds=3, seed=seed)
    params = task.init(seed)
    for snapshot in runs:
        updates = []
        for client in snapshot.clients:
            module, (x, y) = filled(task, params), map(torch.tensor, data[client])
            optimiser = torch.optim.SGD(module.parameters(), lr=LOCAL.lr)
            for rows in minibatches(len(y), LOCAL, stream(seed, "local", snapshot.t, client)):
                optimiser.zero_grad()
                functional.cross_entropy(module(x[rows]), y[rows]).backward()
                optimiser.step()
            updates.append(np.concatenate([p.detach().flatten() for p in module.parameters()]) - params)
        weights = np.array(SIZES, float)[snapshot.clients]
        params = (params + weights @ np.array(updates) / weights.sum()).astype(np.float32)
        assert np.allclose(snapshot.params, params, atol=1e-5)
    assert snapshot.t == 3


@pytest.mark.parametrize("weights", [None, by_samples, [0.2, 0.0, 0.6]], ids=["even", "samples", "given"])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_evaluate_equals_a_naive_loop(weights, ridge):
    train, test = pairs((20, EVALUATION_BATCH, 33)), pairs((EVALUATION_BATCH + 9, 0, 4), seed=1)
    task = Supervised(mlp, train, test, ridge=ridge, **({} if weights is None else {"weights": weights}))
    params = task.init(0)
    module, accuracy, loss, objective = filled(task, params), [], [], []
    for (x, y), (test_x, test_y) in zip(train, test, strict=True):
        outputs = module(torch.tensor(test_x)).detach()
        accuracy.append((outputs.argmax(1).numpy() == test_y).mean() if len(test_y) else np.nan)
        loss.append(functional.cross_entropy(outputs, torch.tensor(test_y)).item() if len(test_y) else np.nan)
        objective.append(autograd(task, params, x, y, ridge)[0])
    clients = task.per_client(params)
    for name, values in (("accuracy", accuracy), ("loss", loss), ("objective", objective)):
        assert np.allclose(clients[name], values, equal_nan=True)
    a, score = task.weights.astype(float), task.evaluate(params)
    known = a[0] + a[2]
    assert score["accuracy"] == pytest.approx((a[0] * accuracy[0] + a[2] * accuracy[2]) / known)
    assert score["loss"] == pytest.approx((a[0] * loss[0] + a[2] * loss[2]) / known)
    assert score["objective"] == pytest.approx(a @ objective / a.sum())
    assert task.test_scores(params) == {name: score[name] for name in ("accuracy", "loss")}
    assert task.objective(params) == score["objective"]


def test_without_test_samples_only_the_objective_is_reported():
    task = Supervised(mlp, pairs(SIZES))
    assert set(task.evaluate(task.init(0))) == set(task.per_client(task.init(0))) == {"objective"}


def test_accuracy_is_nan_where_those_with_test_samples_weigh_nothing():
    task = Supervised(mlp, pairs((5, 5)), pairs((5, 0)), weights=[0, 1])
    assert np.isnan(task.evaluate(task.init(0))["accuracy"])


def squares(outputs, targets):
    return (outputs[:, 0] - targets) ** 2


def test_a_loss_of_your_own():
    rng = np.random.default_rng(0)
    data = [(rng.standard_normal((6, 2)), rng.standard_normal(6)) for _ in range(2)]
    task = Supervised(nn.Linear(2, 1), data, data, loss=squares)
    params = np.array([1.0, -2.0, 0.5], np.float32)
    errors = [(x @ params[:2] + 0.5 - y) for x, y in data]
    assert task.evaluate(params).keys() == {"loss", "objective"}
    assert task.evaluate(params)["loss"] == pytest.approx(np.mean(np.square(errors)))
    loss, gradient = task.gradient(params, 1, next(task.batches(1, Local(0.1, batch=6), stream(0))))
    assert loss == pytest.approx(np.mean(errors[1] ** 2))
    assert np.allclose(gradient, [*(2 * errors[1] @ data[1][0] / 6), 2 * errors[1].mean()], atol=1e-5)


def test_init_depends_on_the_seed_and_leaves_torchs_generator_alone(task):
    before = torch.get_rng_state()
    assert np.array_equal(task.init(1), task.init(1))
    assert not np.array_equal(task.init(1), task.init(2))
    assert task.init(1).shape == (task.d,) == (5 * 6 + 6 + 6 * 3 + 3,)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_module_is_copied_and_every_run_starts_from_it():
    module = nn.Linear(5, 3)
    task = Supervised(module, pairs(SIZES))
    start = np.concatenate([p.detach().flatten() for p in module.parameters()])
    with torch.no_grad():
        module.weight.zero_()
    task.gradient(start + 1, 0, next(task.batches(0, LOCAL, stream(0))))
    assert np.array_equal(task.init(1), start)
    assert module.weight.grad is None


class Dropped(nn.Module):
    """Dropout as a function: no module tells of it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):
        return self.layer(functional.dropout(x, 0.5, self.training))


@pytest.mark.parametrize("model", [Dropped, partial(nn.Sequential, nn.Dropout(), nn.Linear(5, 3))])
def test_dropout_is_drawn_from_the_named_stream(model):
    task = Supervised(model, pairs(SIZES), pairs(SIZES))
    params = task.init(0)
    first, second = task.batches(2, Local(0.1, steps=2, batch=33), stream(0, "d"))
    one = task.gradient(params, 2, first)[1].copy()
    before = torch.get_rng_state()
    torch.rand(3)
    again = task.gradient(params, 2, first)[1].copy()
    assert np.array_equal(one, again)
    assert not np.allclose(one, task.gradient(params, 2, first._replace(seed=second.seed))[1])
    torch.set_rng_state(before)
    task.gradient(params, 2, first)
    assert torch.equal(torch.get_rng_state(), before)
    assert task.evaluate(params) == task.evaluate(params)  # nothing is dropped there
    rng, batches = stream(0, "d"), list(task.batches(2, LOCAL, stream(0, "d")))
    assert np.array_equal(np.stack([batch.rows for batch in batches]) - 27, minibatches(33, LOCAL, rng))
    assert [batch.seed for batch in batches] == [draw(rng) for _ in range(LOCAL.steps)]  # after the samples


def test_dropout_stays_on_in_training_after_an_evaluation():
    task = Supervised(Dropped, pairs(SIZES))
    params, batch = task.init(0), next(task.batches(2, LOCAL, stream(0)))
    before = task.gradient(params, 2, batch)[1].copy()
    task.evaluate(params)
    assert np.array_equal(task.gradient(params, 2, batch)[1], before)


def normalised(layer):
    return nn.Sequential(nn.Linear(5, 4), layer, nn.Linear(4, 3))


def test_norms_without_running_statistics_have_no_buffers():
    for layer in (nn.GroupNorm(2, 4), nn.BatchNorm1d(4, track_running_stats=False)):
        task = Supervised(normalised(layer), pairs(SIZES))
        assert task.d == 5 * 4 + 4 + 8 + 4 * 3 + 3
        assert buffered(task) is None


class Frozen(nn.Module):
    """A random layer that is not trained, a random buffer, and a matrix that is used twice."""

    def __init__(self):
        super().__init__()
        self.random = nn.Linear(5, 4).requires_grad_(False)
        self.tied = nn.Linear(4, 4)
        self.same = self.tied
        self.register_buffer("out", torch.randn(4, 3))

    def forward(self, x):
        return self.same(self.tied(self.random(x))) @ self.out


def test_frozen_parameters_and_buffers_are_constants_and_tied_ones_count_once():
    task = Supervised(Frozen, pairs(SIZES))
    assert [slot.name for slot in task.slots] == ["tied.weight", "tied.bias"]
    assert task.d == 20
    torch.rand(1)
    one, two = task.module(), task.module()
    assert torch.equal(one.out, two.out)
    assert torch.equal(one.random.weight, two.random.weight)
    x, y = pairs(SIZES)[1]
    batch = next(task.batches(1, Local(0.1, batch=9), stream(0)))
    expected = autograd(task, task.init(4), x, y)
    assert np.allclose(task.gradient(task.init(4), 1, batch)[1], expected[1], atol=1e-6)
    copied = pickle.loads(pickle.dumps(task))
    assert np.array_equal(copied.gradient(task.init(4), 1, batch)[1], task.gradient(task.init(4), 1, batch)[1])


def test_a_pickled_task_is_the_same_and_carries_no_working_memory():
    task = Supervised(mlp, pairs(SIZES), pairs(SIZES), ridge=0.1)
    fresh = len(pickle.dumps(task))
    job = Job(task.init(0), np.arange(3), 0, 1, LOCAL)
    expected = Serial(task, LOCAL).train([job])[0]
    assert len(pickle.dumps(task)) == fresh
    copied = pickle.loads(pickle.dumps(task))
    assert np.array_equal(Serial(copied, LOCAL).train([job])[0].updates, expected.updates)
    assert copied.evaluate(job.params) == task.evaluate(job.params)  # accuracy too: the loss is still known


def test_read_only_parameters_are_fine(task):
    params = task.init(0)
    params.flags.writeable = False
    task.gradient(params, 0, next(task.batches(0, LOCAL, stream(0))))
    task.evaluate(params)


def test_a_split_is_used_as_it_is():
    x, y = np.zeros((3, 5), np.float32), np.zeros(3, np.int64)
    task = Supervised(mlp, Split.of(x, y, [0, 1, 3]), Split.of(x, y, [0, 3, 3]))
    x[:] = 1
    assert (task.train.x == 1).all()
    assert task.test.sizes.tolist() == [3, 0]


def test_unused_parameters_have_gradient_zero():
    module = nn.Linear(5, 3)
    module.extra = nn.Parameter(torch.ones(2))
    task = Supervised(module, pairs(SIZES))
    where = {slot.name: slot.where for slot in task.slots}["extra"]
    assert (task.gradient(task.init(0), 0, next(task.batches(0, LOCAL, stream(0))))[1][where] == 0).all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"train": pairs((3, 0, 2, 0))}, "every client must have a training sample, got 2 of 4 without: 1, 3"),
        ({"test": pairs((3, 3))}, "test must have 3 clients, got 2"),
        ({"ridge": -1}, "ridge must be at least 0, got -1"),
        ({"ridge": "1"}, "ridge must be at least 0, got '1'"),
        ({"train": [(np.zeros((2, 5)), np.zeros(2))]}, r"numbers need another loss, such as loss=nn.MSELoss\(\)"),
        ({"loss": nn.MSELoss}, r"loss must be a function .* such as nn.MSELoss\(\), got <class"),
        ({"loss": lambda o, y: 3}, "a loss must return a tensor, got 3"),
        (
            {"loss": nn.MSELoss()},
            r"must not compare outputs \(2, 3\) and targets \(2,\) .* give targets of the outputs'",
        ),
        ({"metrics": {"f1": squares}}, "metrics are scores of test samples: give test, .* or held_out, got none"),
        ({"transform": "flip"}, r"transform must be a function \(x, generator\) .* got 'flip'"),
        ({"transform": lambda x: x}, r"transform must be a function \(x, generator\) .* got: .* 1 positional"),
        ({"transform": lambda x, generator: x[:0]}, "transform must be .* as many inputs as x has, got tensor"),
        ({"weights": [1, 2]}, "weights must be 3 numbers"),
        ({"weights": "per-samples"}, "weights 'per-samples' is unknown; did you mean 'per-sample'"),
        ({"metrics": [squares]}, "metrics must be functions by name, such as .'mae': mae., got "),
        ({"metrics": {"f1": "f1"}}, "metrics must be functions by name"),
        ({"model": nn.Linear}, "model must be an nn.Module, or a function .* makes one, got: .*in_features"),
        ({"model": None}, "model must be an nn.Module, or a function .* makes one, got None"),
        ({"model": dict}, "model must be an nn.Module, or a function .* makes one, got one that makes {}"),
        ({"device": "abacus"}, "device must be one that torch can use here, such as cpu, got 'abacus'"),
        ({"model": nn.Linear(5, 3).double()}, "trained parameters must be float32, got .*float64"),
        ({"model": nn.Identity()}, "a model must have a parameter that requires a gradient, got none"),
        ({"model": nn.Linear(4, 3)}, r"the model must take inputs \(2, 5\) of torch.float32, got: mat1"),
        ({"train": pairs(SIZES, classes=4)}, "class numbers from 0 to 2, .* got torch.int64 .* from 0 to 3"),
        ({"test": pairs(SIZES, classes=9)}, "class numbers from 0 to 2, .* got torch.int64 .* from 0 to 8"),
        ({"train": [(np.zeros((2, 5)), np.array([-1, 0]))]}, "class numbers from 0 to 2, .* from -1 to 0"),
        ({"train": [(np.zeros((2, 5)), np.zeros(2))]}, r"class numbers from 0 to 2, .* got torch.float32 \(2,\)"),
        ({"loss": lambda o, y: o.sum(0)}, r"a loss must give one value per sample, .* or one for all, got \(3,\)"),
        ({"loss": nn.BCEWithLogitsLoss()}, r"the loss must take outputs \(2, 3\) and targets \(2,\) .* got: "),
        ({"model": nn.LSTM(5, 3)}, "a model must return a tensor, or an object with .logits, got tuple"),
        (
            {"metrics": {"loss": squares}},
            "metrics must have other names than accuracy, loss, objective, got .'loss'",
        ),
        ({"model": nn.Sequential(nn.Linear(5, 3), nn.Unflatten(1, (3, 1)))}, r"\(b, classes\) .* got \(2, 3, 1\)"),
    ],
)
def test_what_cannot_work_is_refused_at_construction(change, sentence):
    with pytest.raises(BadInput, match=sentence):
        Supervised(**{"model": mlp, "train": pairs(SIZES), **change})


def test_weights_have_the_names_that_files_use():
    task = Supervised(mlp, pairs(SIZES), weights="per-sample")
    np.testing.assert_allclose(task.weights, np.array(SIZES) / sum(SIZES))
    assert repr(task) == f"Supervised(n={len(SIZES)}, d={task.d})"


def test_clients_for_which_a_metric_is_not_defined_do_not_count():
    def spread(outputs, targets):
        return targets.float().std(correction=0) if len(targets) > 2 else float("nan")

    train = pairs((4, 5, 1))
    task = Supervised(mlp, train, train, metrics={"spread": spread})
    scores, params = task.per_client(task.init(0))["spread"], task.init(0)
    assert np.isnan(scores).tolist() == [False, False, True]
    assert task.evaluate(params)["spread"] == pytest.approx(scores[:2].mean())


def test_one_sample_is_enough():
    task = Supervised(partial(Linear().build, (5,), 3), pairs((1,)))
    (batch,) = task.batches(0, Local(0.1, steps=1), stream(0))
    assert batch.rows.tolist() == [0]


def test_the_optimum_of_a_client_is_the_least_that_it_can_reach_alone():
    task = Supervised(partial(Linear().build, (5,), 3), pairs(SIZES), ridge=0.05)
    assert task.optima.shape == (3,)
    for client, least in enumerate(task.optima):
        start, stop = task.train.offsets[client : client + 2]
        w = task.init(0)
        for _ in range(3000):  # plain gradient descent on all of its samples
            _, gradient = task.gradient(w, client, Batch(torch.arange(start, stop), None))
            w = w - 0.2 * gradient
        assert task.per_client(w)["objective"][client] == pytest.approx(least, abs=2e-5)
    assert task.optima is task.optima, "found once"


@pytest.mark.skipif(load("linear") is None, reason="numba is not installed")
def test_compiled_outputs_of_a_linear_model_are_those_of_torch(monkeypatch):
    task = Supervised(lambda: nn.Linear(5, 3), pairs(SIZES), pairs(SIZES), ridge=0.1)
    params = task.init(3)
    assert task.dense == (5, 3)
    fast, rows = task.evaluate(params), task.per_client(params)
    monkeypatch.setattr("fedstale.tasks.evaluation.load", lambda name: None)
    del task._compiled
    assert fast == pytest.approx(task.evaluate(params), rel=1e-6)
    for name, values in task.per_client(params).items():
        np.testing.assert_allclose(rows[name], values, rtol=1e-6)


@pytest.mark.skipif(load("convolutional") is None, reason="numba is not installed")
def test_compiled_outputs_of_a_small_cnn_are_those_of_torch(monkeypatch):
    data = pairs(SIZES, shape=(1, 6, 6))
    task = Supervised(partial(CNN((4,), hidden=(5,)).build, (1, 6, 6), 3), data, data)
    params = task.init(3)
    fast = task.evaluate(params)
    copied = pickle.loads(pickle.dumps(task))
    assert copied.evaluate(params) == fast
    monkeypatch.setattr("fedstale.tasks.evaluation.load", lambda name: None)
    assert fast == task.evaluate(params), "compiled loops are kept once they are made"
    del task._compiled
    slow = task.evaluate(params)
    assert fast == pytest.approx(slow, rel=1e-6)
    assert fast != slow, "other sums"


def test_a_model_has_the_parameters_and_nobody_else_s_memory() -> None:
    frozen = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    frozen[0].weight.requires_grad_(False)
    task = Supervised(frozen, pairs(SIZES), pairs((9, 5, 4), seed=1))
    params = task.init(0) + 1
    model = task.model(params)
    assert not model.training
    for name, value in named(task, params).items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=0)
    assert torch.equal(model.state_dict()["0.weight"], frozen[0].weight)
    x, y = task.test.x, task.test.y
    assert functional.cross_entropy(model(x), y).item() == pytest.approx(
        np.average(task.per_client(params)["loss"], weights=task.test.sizes)
    )
    before = model(x).detach().clone()
    params[:] = 0
    task.evaluate(params)
    assert torch.equal(model(x), before)
    with pytest.raises(BadInput, match=r"params must be an array \(19,\), such as s.params, got \(3,\)"):
        task.model(params[:3])
