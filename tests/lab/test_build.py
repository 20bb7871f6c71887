"""From the sections of a file to the task: which samples train, and which evaluate."""

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedstale as fs
from fedstale.core import BadInput
from fedstale.core.rng import stream
from fedstale.data import federate, from_frame
from fedstale.fed_cis.task import early_exit_task
from fedstale.lab import schema
from fedstale.lab.build import SYNTHETIC, TABULAR, make_task
from fedstale.lab.execute import execute
from fedstale.lab.plan import plan
from fedstale.lab.schema import read
from fedstale.tasks.synthetic import synthetic
from tests.test_docs import DOCS, blocks

OWN = """
import numpy as np
import fedstale as fs

def images():
    "900 noisy images of three classes; the last 300 are the official test set."
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 900)
    x = rng.integers(0, 100, (900, 1, 4, 4)) + 50 * y[:, None, None, None]
    return fs.data.Dataset("images", x.astype(np.uint8), y, 600, 3, (0.5,), (0.25,))
"""
FILE = """
rounds = 2
algorithms = ["fedavg"]
local = { lr = 0.1 }
participation = { kind = "bernoulli", p = 0.5 }
[data]
dataset = "made_images:images"
clients = 10
"""


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """The task of the file with more keys of [data]."""
    (tmp_path / "made_images.py").write_text(OWN)

    def make(more: str = "") -> Any:
        (tmp_path / "e.toml").write_text(FILE + more)
        chosen = read(tmp_path / "e.toml")
        return chosen.data, make_task(chosen.data, chosen.model.model_dump())

    return make


def test_the_keys_of_samples_for_evaluation_reach_the_task(made: Any) -> None:
    data, task = made('test = "official"\nvalidation = 0.2\nheld_out = 0.3\npartition = "iid"')
    assert task.n == 7
    assert task.samples.tolist() == [48] * 7
    central, validation, held_out = (scored.split for scored in task.scored)
    assert (central.sizes.tolist(), held_out.sizes.tolist()) == ([300], [60] * 3)
    assert validation.sizes.tolist() == [12] * 7
    found = task.evaluate(task.init(0))
    assert {"accuracy", "validation_accuracy", "held_out_accuracy", "validation_loss", "held_out_loss"} < {*found}
    assert data["held_out"] == 0.3


def test_keys_with_their_defaults_are_no_part_of_a_run(made: Any) -> None:
    data, task = made('test = "per-client"\nvalidation = 0\nheld_out = 0.0\ndrop_empty = false')
    keys = {"dataset", "clients", "seed", "partition", "swap", "fraction", "test_share", "weights"}
    assert {*data} == keys
    assert [scored.prefix for scored in task.scored] == [""]


def test_pixels_are_scaled_with_the_mean_and_deviation_of_the_file(made: Any) -> None:
    (_, plain), (_, own) = made(), made("mean = [0.1]\nstd = [2.0]")
    torch.testing.assert_close(own.train.x, (plain.train.x * 0.25 + 0.5 - 0.1) / 2)
    with pytest.raises(BadInput, match=r"data.mean and data.std .* each of 1 channels, got \[0.1, 0.2\]"):
        made("mean = [0.1, 0.2]")
    with pytest.raises(BadInput, match=r"data.std.0 must be above 0"):
        made("std = [0.0]")


def test_images_of_a_smaller_resolution_reach_the_task(made: Any) -> None:
    (_, plain), (data, small) = made(), made("resolution = 2")
    assert data["resolution"] == 2
    pooled = torch.nn.functional.avg_pool2d(plain.train.x, 2)
    torch.testing.assert_close(small.train.x, pooled)
    assert small.test.x.shape[-2:] == (2, 2)
    with pytest.raises(BadInput, match="resolution must divide"):
        made("resolution = 3")
    with pytest.raises(BadInput, match=r"data.resolution must be at least 1, got 0"):
        made("resolution = 0")


@pytest.mark.filterwarnings("ignore:.*have one sample")
def test_clients_without_samples_are_left_out(made: Any) -> None:
    with pytest.warns(UserWarning, match="clients have no samples and are left out"):
        _, task = made("drop_empty = true\nfraction = 0.05\npartition = { kind = 'dirichlet', alpha = 0.05 }")
    assert 0 < task.n < 10
    assert np.isclose(task.weights.sum(), 1)


def test_a_tree_of_nodes_has_test_samples_of_its_own(made: Any) -> None:
    tree = "validation = 0.1\ncis = { widths = [6, 3, 1], mix = [0.2, 0.3, 0.5] }"
    with pytest.raises(
        BadInput, match=r"data.cis tests every node on samples of its own: leave out data.validation"
    ):
        made(tree)
    _, task = made(tree.replace("validation = 0.1", "resolution = 2") + "\n[model]\nkind = 'exit-cnn'")
    assert task.train.x.shape[-2:] == (2, 2)


HOUSES = """
import dataclasses

import numpy as np
import torch

import fedstale as fs

SLOPE = np.array([1.0, -2.0, 0.5])

def houses():
    "Tabular data with a number as its target, and no official test set."
    x = np.random.default_rng(0).normal(size=(200, 3))
    return fs.data.Dataset("houses", x, (x @ SLOPE)[:, None], 200, 1)

def huber(outputs, targets, delta=1.0):
    return torch.nn.functional.huber_loss(outputs, targets, delta=delta, reduction="none")[:, 0]

def mae(outputs, targets):
    return (outputs - targets).abs().mean()

@fs.part
class Half:
    "Every client in every second round."
    def probs(self, n):
        return np.full(n, 0.5, np.float32)

    def rows(self, n, rng):
        while True:
            yield np.arange(n) % 2 == 0
            yield np.arange(n) % 2 == 1

@fs.part
class Told:
    "Always the same belief."
    p: float = 0.5

    def init(self, n):
        return np.full(n, self.p, np.float32)

    def probs(self, belief):
        return belief

    def observe(self, belief, heard):
        return belief

@fs.part
class Halved:
    "A server that goes half of each step."
    def init(self, d):
        return None

    def apply(self, state, params, step):
        return 0.5 * step, state

@fs.part
class First:
    "The update of the first client that came."
    def init(self, n, d):
        return None

    def aggregate(self, state, r):
        return (r.received()[0] if len(r.clients) else np.zeros_like(r.params)), state
"""
OWN_PARTS = """
name = "own"
rounds = 6
algorithms = ["unbiased", "own_houses:First"]
local = { lr = 0.1 }
participation = "own_houses:Half"
estimator = { kind = "own_houses:Told", p = 0.4 }
server = "own_houses:Halved"
[data]
dataset = "own_houses:houses"
clients = 4
[model]
loss = { kind = "own_houses:huber", delta = 2.0 }
metrics = { mae = "own_houses:mae" }
"""


def test_every_part_of_a_file_may_be_ones_own(tmp_path: Path) -> None:
    (tmp_path / "own_houses.py").write_text(HOUSES)
    (tmp_path / "e.toml").write_text(OWN_PARTS)
    chosen = read(tmp_path / "e.toml")
    planned = plan(chosen, tmp_path / "runs")
    results = [p.result for p in execute(chosen, planned) if p.result]
    assert len(results) == 2
    assert all(r["mae"]["final"] < 1 and "accuracy" not in r for r in results)
    named = {f"own_houses:{name}" for name in ("Half", "Told", "Halved", "houses", "huber", "mae")}
    assert named <= {*planned[0].config["sources"]}, "each counts in the run's key"
    assert {*planned[1].config["sources"]} - {*planned[0].config["sources"]} == {"own_houses:First"}


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("loss = 'mse'", r"model.loss must be \"package.module:Name\", such as \"torch.nn:MSELoss\", got 'mse'"),
        ("loss = { delta = 1 }", "model.loss must be .* got None"),
        ("loss = 'torch.nn:MSELos'", "did you mean 'MSELoss'"),
        ("loss = { kind = 'torch.nn:HuberLoss', delt = 1 }", "model.loss torch.nn:HuberLoss cannot be made with"),
        ("metrics = { f1 = 'nowhere:f1' }", "model.metrics.f1 'nowhere:f1': there is no module 'nowhere'"),
        ("metrics = { accuracy = 'torch:mean' }", "metrics must have other names than accuracy"),
    ],
)
def test_a_loss_or_metric_that_cannot_be_used_is_refused(model: str, sentence: str, made: Any) -> None:
    with pytest.raises(BadInput, match=sentence):
        made(f"[model]\n{model}")


def test_torchs_cross_entropy_with_its_settings_is_taken(made: Any) -> None:
    _, task = made("[model]\nloss = { kind = 'torch.nn:CrossEntropyLoss', label_smoothing = 0.1 }")
    assert task.loss.label_smoothing == 0.1
    assert "accuracy" in task.evaluate(task.init(0))


def test_a_recording_lies_beside_the_file_that_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "matrix.csv").write_text("1,0,1\n0,1,1\n")
    text = FILE.replace("made_images:images", "quadratic").replace("clients = 10", "clients = 2")
    for participation in (
        '"trace", matrix = "matrix.csv" }',
        '"sampling", size = 1, base = { kind = "trace", matrix = "matrix.csv" } }',
    ):
        (folder / "e.toml").write_text(text.replace('"bernoulli", p = 0.5 }', participation))
        (chosen,) = plan(read(folder / "e.toml"), tmp_path / "runs")
        found = chosen.participation if isinstance(chosen.participation, fs.Trace) else chosen.participation.base  # type: ignore[attr-defined]
        assert np.array_equal(found.recording(2), [[1, 0], [0, 1], [1, 1]])
        assert np.allclose(found.probs(2), 2 / 3), "the mean of each client's row"


NORMAL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = torch.nn.Linear(16, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)
    def forward(self, x):
        return self.head(self.norm(self.body(x.flatten(1))))
"""


def test_what_stays_with_the_client_is_said_in_the_file(made: Any, tmp_path: Path) -> None:
    (tmp_path / "normal_net.py").write_text(NORMAL)
    kind = '\n[model]\nkind = "normal_net:Net"\n'
    _, task = made(f'{kind}buffers = "local"\npersonal = ["head"]')
    assert (task.d, task.personal[-1], len(task.own_buffers)) == (16 * 4 + 4, "head.bias", 3)
    _, task = made(f'{kind}buffers = "frozen"')
    assert task.frozen
    keys = [read(tmp_path / "e.toml").model.model_dump()]
    _, task = made(f'{kind}buffers = "average"\npersonal = []')
    assert task.averaged
    keys.append(read(tmp_path / "e.toml").model.model_dump())
    assert [{"buffers", "personal"} & {*key} for key in keys] == [{"buffers"}, set()]
    with pytest.raises(
        BadInput, match="personal must name trained parameters, got 'tail'; the model has body, norm"
    ):
        made(f'{kind}personal = ["tail"]')
    with pytest.raises(BadInput, match=r"model\.buffers are for images, got data.dataset 'synthetic'"):
        make_task({"dataset": "synthetic", "clients": 2, "seed": 0}, {"kind": "linear", "buffers": "local"})


def released(folder: Path, made: Any) -> Path:
    """The file of the guide, with its recording, for small images that are made here."""
    found = {block.note: block.text for block in blocks(DOCS / "guides" / "data_and_losses.md")}
    (folder / "availability.csv").write_text(found["file: availability.csv"])
    text = (
        found["file: released.toml"].replace('"mnist"', '"made_images:images"').replace('"mnist-cnn"', '"linear"')
    )
    made()  # writes the module
    (folder / "released.toml").write_text(text)
    return folder / "released.toml"


def test_the_released_protocol_is_a_plain_loop(made: Any, tmp_path: Path) -> None:
    """FedStale with everything that the authors' code adds, written out in torch; round 4 is without clients."""
    small = [
        "rounds=6",
        "data.fraction=1.0",
        "local.batch=16",
        "data.partition.alpha=1.0",
        "seeds=[3]",
        "local.lr=0.05",
    ]
    chosen = read(released(tmp_path, made), small)
    matrix = np.loadtxt(tmp_path / "availability.csv", delimiter=",")
    task: Any = make_task(chosen.data, chosen.model.model_dump())
    assert task.scored[0].split.sizes.tolist() == [300]
    assert np.allclose(task.weights, task.samples / 600)
    planned = plan(chosen, tmp_path / "runs")
    results = {p.planned.algorithm.label: p.planned.folder for p in execute(chosen, planned) if p.result}
    for label, beta in (("unbiased", 0.0), ("fedstale", 0.5), ("fedvarp", 1.0)):
        params = _plain_loop(task, matrix, beta, lr=0.05, batch=16, decay=5e-4)
        np.testing.assert_allclose(results[label].params(), params, rtol=1e-4, atol=1e-5)


def _plain_loop(task: Any, matrix: Any, beta: float, lr: float, batch: int, decay: float) -> Any:
    w, memory, p, a = task.init(3), np.zeros((7, task.d)), matrix.mean(axis=1), task.samples / 600
    for t, row in enumerate(matrix.T, 1):
        fresh = {i: _epoch(task, w, i, t, lr, batch, decay) - w for i in np.flatnonzero(row)}
        if fresh:
            step = beta * a @ memory + sum(a[i] / p[i] * (u - beta * memory[i]) for i, u in fresh.items())
            w = (w + step - decay * w).astype(np.float32)
        for i, update in fresh.items():
            memory[i] = update
    return w


def _epoch(task: Any, w: Any, client: int, t: int, lr: float, batch: int, decay: float) -> Any:
    start, stop = task.train.offsets[client : client + 2]
    order = start + stream(3, "local", t, client).permutation(stop - start)
    b = min(batch, stop - start)
    module = task.model(w).train()
    optimiser = torch.optim.SGD(module.parameters(), lr=lr, weight_decay=decay)
    for k in range((stop - start) // b):  # the last incomplete batch is left out, unless it is the only one
        rows = order[k * b : (k + 1) * b]
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(task.train.x[rows]), task.train.y[rows]).backward()
        optimiser.step()
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


def test_a_client_that_never_comes_is_taken_where_all_p_are_given(made: Any, tmp_path: Path) -> None:
    path = released(tmp_path, made)
    (tmp_path / "availability.csv").write_text("1,0\n" * 6 + "0,0\n")
    small = ["rounds=2", "data.fraction=1.0", "data.partition.alpha=1.0"]
    chosen = read(path, small)
    with pytest.raises(BadInput, match=r"is 0 for 1 of 7 clients \(first: \[6\]\)"):
        list(execute(chosen, plan(chosen, tmp_path / "runs")))
    chosen = read(path, [*small, 'estimator={kind="known", p=[0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]}'])
    assert sum(p.result is not None for p in execute(chosen, plan(chosen, tmp_path / "runs"))) == 3


@pytest.mark.parametrize(
    ("section", "function"),
    [
        (schema.Images, federate),
        (schema.Tabular, from_frame),
        (schema.Synthetic, synthetic),
        (schema.Model, fs.Supervised),
        (schema.Cis, early_exit_task),
    ],
)
def test_a_key_that_a_file_leaves_out_is_what_the_function_takes_it_to_be(section: Any, function: Any) -> None:
    """Keys that came later are passed on only where they are given: then the default of the function holds."""
    keys = [
        key for key in section.later if key in signature(function).parameters and key not in ("loss", "metrics")
    ]
    assert keys
    for key in keys:
        told = section.model_fields[key].default
        assert (tuple(told) if isinstance(told, list) else told) == signature(function).parameters[key].default, key


@pytest.mark.parametrize(
    ("section", "function", "passed"),
    [(schema.Tabular, from_frame, TABULAR), (schema.Synthetic, synthetic, (*SYNTHETIC, "weights"))],
)
def test_every_setting_that_the_function_has_reaches_it(section: Any, function: Any, passed: Any) -> None:
    assert {*section.model_fields} & {*signature(function).parameters} == {*passed}
