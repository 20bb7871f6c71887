"""Acyclic graphs, given fractions, thresholds, statistics of each exit, and slices of the width."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedstale.core import BadInput, Local
from fedstale.core.abilities import evaluate
from fedstale.core.rng import stream
from fedstale.engines import Serial
from fedstale.fed_cis import Tree, layered, normalised_entropy, serve
from fedstale.fed_cis.networks import EarlyExit, ExitResNet18, SlicedCNN
from fedstale.fed_cis.task import EarlyExitTask
from fedstale.lab.build import make_participation, make_task
from fedstale.lab.schema import check
from fedstale.participation import Bernoulli
from fedstale.simulate import simulate
from fedstale.strategies import FedAvg

LINKS = [[0, 0.25, 0.75, 0], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]]  # a device, two edges, a cloud
INF = float("inf")


def graph(**changes):
    settings = {"parents": LINKS, "exits": [1, 2, 2, 3], "arrivals": [8, 1, 0, 0], "capacity": [4, INF, 2, 0]}
    return Tree(**settings | changes)


def test_with_fractions_the_strongest_node_may_be_anywhere():
    strong = graph(exits=[3, 2, 1, 1], fractions=[0.5, 0.1, 1, 1])
    assert strong.rates().tolist() == pytest.approx([3 + 1.8, 0.2, 4])


def test_what_a_node_passes_on_is_divided_among_its_parents():
    # node 0 passes 4 of 8: 1 and 3; node 1 passes all of 1 + 1, node 2 passes 2 of 3
    flows = graph().flows()
    assert flows.incoming.tolist() == [8, 2, 3, 4]
    assert flows.served.tolist() == [4, 0, 1, 4]
    assert graph().rates().tolist() == [4, 1, 4]
    tree, same = (Tree(p, [1, 1, 2], [3, 1, 0], [1, 0.3, 0]) for p in ([2, 2, -1], [[0, 0, 1], [0, 0, 1], [0] * 3]))
    for one, other in zip(tree.flows(), same.flows(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_experiment_has_the_same_settings():
    cis = {"parents": LINKS, "exits": [1, 2, 2, 3], "arrivals": [8, 1, 0, 0], "capacity": [4, INF, 2, 0]}
    raw = {"name": "try", "rounds": 1, "algorithms": ["unbiased"], "participation": "exits", "local": {"lr": 0.1}}
    data = {
        "dataset": "digits",
        "clients": 4,
        "cis": cis
        | {"fractions": [0.5, 0.1, 1, 1], "thresholds": [0.1] * 3}
        | {"weighting": {"kind": "given", "values": [2, 1, 1]}},
    }
    task = make_task(
        check(raw | {"data": data}).data, {"kind": "sliced-cnn", "channels": (4, 4), "ridge": 0.0}, "cpu"
    )
    assert task.tree == graph(fractions=[0.5, 0.1, 1, 1])  # type: ignore[attr-defined]
    assert (task.thresholds, len(task.exits)) == ([0.1] * 3, 3)  # type: ignore[attr-defined]
    assert task.exit_weights.tolist() == [0.5, 0.25, 0.25]  # type: ignore[attr-defined]
    plain = check(raw | {"data": data | {"cis": cis}}).data["cis"]
    assert not {"fractions", "thresholds"} & {*plain}  # a run that has neither is called as before
    one = check(raw | {"data": data | {"cis": cis | {"thresholds": 0.1}}}).data["cis"]
    assert one["thresholds"] == 0.1
    other = raw | {"data": data | {"cis": cis | {"p": 0.2}}, "participation": {"kind": "exits", "p": 0.3}}
    with pytest.raises(BadInput, match=r"^participation.p must be that of data.cis, 0.2, or be left out, got 0.3$"):
        make_participation(other["participation"], check(other | {"participation": "exits"}).data)
    none = check(raw | {"data": data | {"cis": cis | {"p": float("nan")}}}).data
    with pytest.raises(BadInput, match=r"^participation: p must be at least 0 and .*, got nan$"):
        make_participation("exits", none)
    for key in ("p", "thresholds"):
        with pytest.raises(BadInput, match=rf"^data\.cis\.{key} must be a number or a list, got 'x'$"):
            check(raw | {"data": data | {"cis": cis | {key: "x"}}})


def test_fractions_that_are_given_are_served():
    # (5.2), (5.3): node 0 serves half of 8, node 1 a tenth of 1 + 1, node 2 all of 3
    flows = graph(fractions=[0.5, 0.1, 1, 1], capacity=[4, INF, 2, 0]).flows()
    assert flows.served.tolist() == pytest.approx([4, 0.2, 3, 1.8])
    assert flows.transferred.tolist() == pytest.approx([4, 1.8, 0, 0])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"fractions": [0.4, 0.1, 1, 1]}, r"^fractions must leave no more than the capacity .* at nodes \[0\]$"),
        ({"fractions": [0.5, 0.1, 1, 0.5]}, "^fractions must be 4 numbers in .*, and 1 at a root"),
        ({"fractions": [0.5, 1, 1]}, "^fractions must be 4 numbers"),
        (
            {"parents": [[0, 0.5, 0, 0], *LINKS[1:]]},
            r"^parents must be one node each, or .*, got shape \(4, 4\) with row sums \[0.5, ",
        ),
        ({"parents": [*LINKS[:3], [1, 0, 0, 0]], "exits": [1] * 4}, "without a cycle, got one through node 0"),
        (
            {"exits": [3, 2, 2, 3]},
            "^a parent's exit must be at least as deep as its children's, got .*: else give fractions$",
        ),
    ],
)
def test_what_is_no_graph(changes, sentence):
    with pytest.raises(BadInput, match=sentence):
        graph(**changes)


def test_requests_go_both_ways_and_the_easiest_are_served():
    rng = np.random.default_rng(0)
    hard, requests = rng.random((3, 10)), np.zeros((4, 10))
    requests[0], requests[1, :5] = 0.8, 0.2
    served = serve(graph(), hard, requests)
    np.testing.assert_allclose(served.sum(axis=1), graph().flows().served)
    np.testing.assert_allclose(served.sum(axis=0), requests.sum(axis=0))  # every request is answered once
    easiest = np.argsort(hard[0])[:5]
    np.testing.assert_allclose(served[0, easiest], 0.8)  # 4 of 8 at the device
    passed = np.setdiff1d(np.arange(10), easiest)
    best = passed[np.argsort(hard[1, passed])]  # node 2 serves 1 of the 0.6 each that reach it
    np.testing.assert_allclose(served[2, best], [0.6, 0.4, 0, 0, 0], atol=1e-12)


def test_below_a_threshold_a_request_is_answered_where_it_is():
    hard = np.array([[0.1, 0.5, 0.5, 0.9], [0.9, 0.2, 0.7, 0.1], [1.0, 1.0, 1.0, 1.0]])
    served = serve(graph(arrivals=[4, 0, 0, 0]), hard, [[1.0] * 4, *np.zeros((3, 4))], thresholds=[0.5, 0.6, 0.0])
    assert served.tolist() == [[1, 0, 0, 0], [0, 0.25, 0, 0.25], [0, 0.75, 0, 0.75], [0, 0, 1, 0]]


def test_a_network_answers_by_its_thresholds():
    build = partial(SlicedCNN((4, 6), (0.5, 1.0)).build, (1, 8, 8), 3)
    data = samples((5, 7), (1, 8, 8))
    for thresholds, exit in (
        (0.0, 2),
        (1.0, 1),
    ):  # all goes up, or stays at the leaf, which serves 2 of 3 otherwise
        task = EarlyExitTask(build, data, data, tree=TREE, pairs=PAIRS, thresholds=thresholds)
        scores = task.evaluate(task.init(3))
        assert scores["accuracy"] == pytest.approx(scores[f"accuracy_exit_{exit}"])


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (
            lambda: serve(graph(), np.ones((3, 2)), np.ones((4, 3))),
            r"^difficulty must be .*, got shapes \(3, 2\) and",
        ),
        (
            lambda: serve(TREE, np.ones((2, 1)), [[3], [0]], thresholds=float("nan")),
            r"^thresholds must be numbers, got \[nan nan\]",
        ),
        (lambda: layered("x", (1, 2)), "^widths must be a list of whole numbers, got 'x'$"),
        (lambda: normalised_entropy(1.0), "^normalised_entropy cannot use these arguments"),
    ],
)
def test_what_cannot_be_served(broken, sentence):
    with pytest.raises(BadInput, match=sentence):
        broken()


@pytest.mark.parametrize("wrong", [[0.3, 0.5, 0.5], 1.5, [-0.1, 0.5], [float("nan")]])
def test_thresholds_are_checked_before_anything_is_trained(wrong):
    build = partial(SlicedCNN((4, 6), (0.5, 1.0)).build, (1, 8, 8), 3)
    with pytest.raises(BadInput, match=r"^thresholds must be one, or one for each of 2 exits, in \[0, 1\], got"):
        EarlyExitTask(build, samples((5, 7), (1, 8, 8)), tree=TREE, pairs=PAIRS, thresholds=wrong)


def test_words_and_a_network_in_the_place_of_its_function_are_refused():
    build = partial(SlicedCNN((4, 6), (0.5, 1.0)).build, (1, 8, 8), 3)
    make = partial(EarlyExitTask, train=samples((5, 7), (1, 8, 8)), tree=TREE, pairs=PAIRS)
    with pytest.raises(BadInput, match=r"^thresholds must be .* got 'high'$"):
        make(build, thresholds="high")
    with pytest.raises(BadInput, match=r"^model must be a function that makes an EarlyExit\(stages, heads\), got"):
        make(build())


def samples(sizes, shape, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((k, *shape)).astype(np.float32), rng.integers(0, 3, k)) for k in sizes]


TREE = Tree([1, -1], [1, 2], [3, 0], [1, 0])
PAIRS = [[0, 1], [1, 1], [1, 2]]


def test_a_slice_is_the_corner_of_the_whole_network():
    build = partial(SlicedCNN((4, 6), (0.5, 1.0)).build, (1, 8, 8), 3)
    task = EarlyExitTask(build, samples((5, 7), (1, 8, 8)), samples((3, 3), (1, 8, 8), 1), tree=TREE, pairs=PAIRS)
    w, x = task.init(3), task.train.x
    answers = task.answers(w, task.train)
    narrow = task.exits[0]
    whole = {slot.name: w[slot.where].reshape(slot.shape) for slot in task.slots}
    y = torch.relu(torch.max_pool2d(torch.conv2d(x, *_parts(whole, "1", 2, 1), padding=1), 2))
    y = torch.relu(torch.max_pool2d(torch.conv2d(y, *_parts(whole, "4", 3, 2), padding=1), 2))
    weight, bias = torch.tensor(whole["whole.9.weight"][:, : 3 * 4]), torch.tensor(whole["whole.9.bias"])
    np.testing.assert_allclose(answers[0], (y.flatten(1) @ weight.T + bias).numpy(), rtol=1e-4, atol=1e-5)
    assert narrow.task.d < task.exits[1].task.d == task.d
    batch = next(task.batches(0, Local(0.1, steps=1, batch=5), stream(0)))
    gradient = task.gradient(w, 0, batch)[1].copy()
    inside = narrow.widen(np.ones(narrow.task.d, np.float32), task.d) > 0
    assert inside.sum() == narrow.task.d
    assert not gradient[~inside].any()
    step = np.float32(1e-2) * gradient
    rows = batch.rows
    losses = [
        nn.functional.cross_entropy(torch.tensor(task.answers(v, task.train)[0])[rows], task.train.y[rows])
        for v in (w + step, w - step)
    ]
    assert float(losses[0] - losses[1]) / 2e-2 == pytest.approx(float(gradient @ gradient), rel=0.02)


def _parts(whole, layer, outputs, inputs):
    return (
        torch.tensor(whole[f"whole.{layer}.weight"][:outputs, :inputs]),
        torch.tensor(whole[f"whole.{layer}.bias"][:outputs]),
    )


def test_every_exit_has_running_statistics_of_its_own():
    def normed():
        first = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4))
        return EarlyExit([first, nn.Linear(4, 4)], [nn.Linear(4, 3), nn.Linear(4, 3)])

    data, local = samples((6, 8), (4,)), Local(0.1, steps=2, batch=3)
    task = EarlyExitTask(normed, data, data, tree=TREE, pairs=PAIRS[:2])  # nobody trains exit 2
    s = next(simulate(Serial(task, local), FedAvg(), Bernoulli(1.0), rounds=1))
    means = []
    for client in range(2):
        mean = np.zeros(4)
        for batch in task.batches(client, local, stream(0, "local", 1, client)):
            mean = 0.9 * mean + 0.1 * task.train.x[batch.rows].numpy().mean(axis=0)
        means.append(mean)
    after, before = (task._by_exit(b) for b in (s.checkpoint.buffers, task.initial_buffers))
    a = task.weights / task.weights.sum()
    np.testing.assert_allclose(after[0][:4], a[0] * means[0] + a[1] * means[1], rtol=1e-5)
    np.testing.assert_array_equal(after[1], before[1])
    started = task.evaluate(s.params, task.initial_buffers)
    assert evaluate(task, s) == task.evaluate(s.params, s.checkpoint.buffers) != started
    with pytest.raises(BadInput, match=r"buffers of this model .*: use fs\.evaluate\(task, s\)"):
        task.evaluate(s.params)
    own = np.arange(len(task.initial_buffers), dtype=np.float64)
    task.load_buffers(own)
    np.testing.assert_array_equal(task.read_buffers(), own)
    assert task.layout()["buffers"][0]["name"].startswith("exit 1: ")


def test_resnet_with_batch_norm_and_a_setting_that_is_wrong():
    module = ExitResNet18((2, 5), width=2, groups=1, batch_norm=True).build((3, 8, 8), 5)
    assert any(isinstance(layer, nn.BatchNorm2d) for layer in module.modules())
    assert not any(isinstance(layer, nn.GroupNorm) for layer in module.modules())
    with pytest.raises(BadInput, match=r"^widths must be shares above 0, ascending, the last one 1"):
        SlicedCNN(widths=(0.5, 0.9))
