"""Networks with exits, and the task whose clients are pairs of a node and an exit."""

import pickle
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from fedstale.core import BadInput, Job, Local, Round
from fedstale.data.federated import Federated
from fedstale.engines import Serial
from fedstale.fed_cis import Balanced, Equal, FlopsProportional, ServingRate, Tree, everywhere, own
from fedstale.fed_cis.networks import EarlyExit, ExitCNN, ExitResNet18
from fedstale.fed_cis.sampling import ExitSampling
from fedstale.fed_cis.task import EarlyExitTask, early_exit_task
from fedstale.simulate import simulate
from fedstale.strategies import FedAvg, FedStale, Unbiased
from fedstale.tasks.models import ChannelsLast
from fedstale.tasks.split import by_samples
from fedstale.tasks.supervised import Supervised

SIZES = (4, 6, 10)  # of the three nodes
TREE = Tree(parents=[2, 2, -1], exits=[1, 1, 2], arrivals=[3, 1, 0], capacity=[1, 1, 0])  # serves 2, 0 and 2
SAMPLING = ExitSampling([1, 1, 2], p=0.25)  # pairs (0, 1), (1, 1), (2, 1), (2, 2)
LOCAL = Local(lr=0.1, steps=2, batch=3)


def samples(sizes, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((k, 1, 4, 4)).astype(np.float32), rng.integers(0, 3, k)) for k in sizes]


def network(channels=(2, 3)):
    return partial(ExitCNN(channels).build, (1, 4, 4), 3)


def tiny(sampling=SAMPLING, tree=TREE, **settings):
    test = samples((3, 2, 4), seed=1)
    return EarlyExitTask(network(), samples(SIZES), test, tree=tree, pairs=sampling.pairs(), **settings)


def names(task, gradient):
    return {slot.name.split(".")[0] + slot.name.split(".")[1] for slot in task.slots if gradient[slot.where].any()}


# Networks


@pytest.mark.parametrize(
    "model", [ExitCNN((2, 4, 3)), ExitResNet18((2, 5), width=4, groups=2), ExitResNet18((), 2, 1)]
)
def test_a_prefix_gives_the_answers_of_its_exit(model):
    torch.manual_seed(0)
    module, x = model.build((3, 8, 8), 5), torch.randn(2, 3, 8, 8)
    answers = module(x)
    assert answers.shape == (len(module.heads), 2, 5)
    for exit, answer in enumerate(answers, 1):
        assert torch.equal(module.prefix(exit)(x), answer)


def test_a_prefix_computes_and_holds_nothing_more():
    module = ExitCNN((2, 4, 3)).build((1, 8, 8), 5)
    ran = []
    for k, stage in enumerate(module.stages):
        stage.register_forward_hook(lambda *_, k=k: ran.append(k))
    prefix = module.prefix(2)
    prefix(torch.zeros(1, 1, 8, 8))
    assert ran == [0, 1]
    held = {".".join(name.split(".")[:2]) for name, _ in prefix.named_parameters()}
    assert held == {"stages.0", "stages.1", "heads.1"}
    assert {name for name, _ in prefix.named_parameters()} < {name for name, _ in module.named_parameters()}


@pytest.mark.parametrize(
    ("exits", "parameters"), [((2, 5), (148_426, 2_179_978)), ((5, 7), (2_179_978, 6_450_000))]
)
def test_resnet_18_is_cut_after_the_thesis_blocks(exits, parameters):
    module = ExitResNet18(exits).build((3, 32, 32), 10)
    assert [len(stage) for stage in module.stages] == [exits[0] + 1, exits[1] - exits[0], 8 - exits[1]]
    heads = [64 * 2 ** ((end - 1) // 2) * 10 + 10 for end in exits]
    # ResNet-18 for CIFAR-10 has 11,173,962 parameters
    assert sum(p.numel() for p in module.parameters()) == 11_173_962 + sum(heads)
    stem, block = 3 * 64 * 9 + 128, 2 * 64 * 64 * 9 + 4 * 64
    if exits[0] == 2:
        assert sum(p.numel() for p in module.prefix(1).parameters()) == stem + 2 * block + heads[0]


def test_impossible_networks_are_refused():
    for exits in ((5, 2), (0, 3), (3, 8), (2, 2)):
        with pytest.raises(BadInput, match="exits must be blocks from 1 to 7, ascending"):
            ExitResNet18(exits)
    with pytest.raises(BadInput, match="width must be a multiple of groups"):
        ExitResNet18(width=48)
    with pytest.raises(BadInput, match="channels must be sizes"):
        ExitCNN(())
    with pytest.raises(BadInput, match="kernel must be odd"):
        ExitCNN(kernel=2)
    with pytest.raises(BadInput, match="every stage needs a head"):
        EarlyExit([nn.Identity()], [])
    with pytest.raises(BadInput, match="exit must be from 1 to 2, got 3"):
        network()().prefix(3)


# Clients


def test_weights_are_those_of_the_exits_shared_by_samples():
    task = tiny(weighting=ServingRate())
    assert task.exit_weights == pytest.approx([0.5, 0.5])
    # D_1 are all 20 samples, D_2 the 10 of node 2
    assert task.weights == pytest.approx([0.5 * 4 / 20, 0.5 * 6 / 20, 0.5 * 10 / 20, 0.5])
    alone = tiny(ExitSampling([1, 1, 2]), weighting=ServingRate())
    assert alone.weights == pytest.approx([0.5 * 4 / 10, 0.5 * 6 / 10, 0.5])
    assert task.weights.dtype == np.float32
    assert (task.n, alone.n) == (4, 3)


def test_an_exit_that_nobody_trains_leaves_its_weight_to_the_others():
    tree = Tree([2, 2, -1], [1, 1, 1], [3, 1, 0], [1, 1, 0])
    task = tiny(ExitSampling([1, 1, 1]), tree, weighting=Equal())
    assert task.exit_weights == pytest.approx([0.5, 0.5])
    assert task.weights == pytest.approx(np.array(SIZES) / 20)


def test_a_gradient_is_zero_outside_the_prefix_and_moves_its_head():
    task = tiny()
    w, rng = task.init(0), np.random.default_rng(0)
    for client, (node, exit) in enumerate(task.pairs.tolist()):
        (batch,) = task.batches(client, Local(lr=1, steps=1, batch=100), rng)
        loss, gradient = task.gradient(w, client, batch)
        expected = {"stages0", "heads0"} if exit == 1 else {"stages0", "stages1", "heads1"}
        assert names(task, gradient) == expected
        module, (x, y) = task.module(), samples(SIZES)[node]
        torch.nn.utils.vector_to_parameters(torch.from_numpy(w), module.parameters())
        whole = nn.functional.cross_entropy(module(torch.from_numpy(x))[exit - 1], torch.from_numpy(y))
        whole.backward()
        wanted = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
        assert gradient == pytest.approx(torch.cat([g.flatten() for g in wanted]).numpy(), abs=1e-6)
        assert loss == pytest.approx(whole.item(), abs=1e-6)


def test_the_step_is_unbiased_exit_by_exit():
    """E[step] over all draws of the sampling, one by one, is Σ a Δ, with every rule that divides by p."""
    task = tiny(weighting=ServingRate())
    p, everybody = SAMPLING.probs(task.n), np.arange(task.n)
    reply = Serial(task, LOCAL).train([Job(task.init(0), everybody, 1, 1, LOCAL)])[0]
    options = [[v for v in everybody if task.pairs[v, 0] == node] for node in range(3)]
    for rule in (Unbiased(), FedStale(0.5)):
        expected, total = np.zeros(task.d), 0.0
        for drawn in product(*options):
            chance, ids = np.prod(p[list(drawn)].astype(np.float64)), np.array(drawn)
            arrived = np.ones((3, 1), np.bool_)
            r = Round(1, task.init(0), ids, reply.updates[ids], arrived, reply.losses[ids], task.weights, p)
            expected += chance * rule.aggregate(rule.init(task.n, task.d), r)[0]
            total += chance
        assert total == pytest.approx(1)
        assert expected == pytest.approx(task.weights @ reply.updates, abs=1e-6)
    only_first = np.concatenate([np.arange(task.d)[s.where] for s in task.slots if s.name.startswith("heads.0")])
    assert np.abs(expected[only_first]).max() > 1e-3  # the heads of early exits do learn


def plain():
    """A network with one exit, written by hand."""
    layers = [ChannelsLast(), nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8, 3))


@pytest.mark.parametrize("rule", [Unbiased(), FedAvg(), FedStale(1.0)])
@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_one_exit_and_one_level_is_plain_federated_averaging(rule, ridge):
    flat = Tree([-1] * 3, [1] * 3, SIZES, [0] * 3)
    sampling = ExitSampling([1] * 3)
    train, test = samples(SIZES), samples((3, 2, 4), seed=1)
    shared = {"tree": flat, "pairs": sampling.pairs(), "ridge": ridge}
    cis = EarlyExitTask(network((2,)), train, test, weighting=ServingRate(), **shared)
    supervised = Supervised(plain, train, test, weights=by_samples, ridge=ridge)
    ends = []
    for task in (cis, supervised):
        *_, last = simulate(Serial(task, LOCAL), rule, sampling, rounds=3, seed=2)
        ends.append(last.params)
    assert np.array_equal(*ends)
    mine, theirs = cis.evaluate(ends[0]), supervised.evaluate(ends[1])
    assert mine.pop("accuracy_exit_1") == pytest.approx(mine["accuracy"])
    assert mine == pytest.approx(theirs, rel=1e-6)  # the same names, too


# Scores


def test_the_objective_is_the_weighted_sum_of_the_clients_losses():
    task = tiny(weighting=ServingRate(), ridge=0.3)
    w, rng = task.init(3), np.random.default_rng(0)
    whole = Local(lr=1, steps=1, batch=100)
    losses = [task.gradient(w, v, next(task.batches(v, whole, rng)))[0] for v in range(task.n)]
    assert task.objective(w) == pytest.approx(float(task.weights @ losses), rel=1e-5)


def test_served_scores_by_hand():
    task = tiny(requests=everywhere)
    w = task.init(0)
    answers, y = task.answers(w, task.test), task.test.y.numpy()
    logits = answers - answers.max(-1, keepdims=True)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    hit, loss = answers.argmax(-1) == y, -np.log(p[:, np.arange(9), y])
    hard = np.argsort(-(p * np.log(p)).sum(-1)[0])  # 9 samples, easiest first, as exit 1 sees them
    # node 0 serves 2 of its 3 requests a second, hence the easiest 6 of 9; node 1 forwards its only one
    first, rest = hard[:6], hard[6:]
    served = 2 * hit[0, first].mean() + 1 * hit[1, rest].mean() + 1 * hit[1].mean()
    lost = 2 * loss[0, first].mean() + 1 * loss[1, rest].mean() + 1 * loss[1].mean()
    scores = task.evaluate(w)
    assert scores["accuracy"] == pytest.approx(served / 4)
    assert scores["loss"] == pytest.approx(lost / 4, rel=1e-5)
    assert [scores["accuracy_exit_1"], scores["accuracy_exit_2"]] == pytest.approx(hit.mean(axis=1))
    assert len(set(scores.values())) > 3


def test_without_test_samples_there_is_only_the_objective():
    task = EarlyExitTask(network(), samples(SIZES), tree=TREE, pairs=SAMPLING.pairs())
    assert set(task.evaluate(task.init(0))) == {"objective"}


# Measures


def test_flops_are_counted_from_the_network():
    # 4 × 4 pixels: 2 · 9 · 1 · 2 a pixel, then 2 · (2 · 4) · 3; pooled to 2 × 2: 2 · 9 · 2 · 3, then 2 · 12 · 3
    first, head, second, last = 16 * 36, 48, 4 * 108, 72
    assert tiny().flops().tolist() == [first + head, first + second + last]
    flops = np.array([first + head, first + second + last])
    assert tiny(weighting=FlopsProportional()).exit_weights == pytest.approx(flops / flops.sum())


def test_variances_are_those_of_minibatch_gradients():
    task = tiny()
    w = task.init(5)
    measured = task.variances(w, batch=2, batches=400)
    x, y = (torch.cat([torch.from_numpy(node[k]) for node in samples(SIZES)]) for k in (0, 1))
    for exit in (1, 2):
        module = task.module()
        torch.nn.utils.vector_to_parameters(torch.from_numpy(w), module.parameters())
        prefix, rows = module.prefix(exit), []
        for k in range(20):
            prefix.zero_grad()
            nn.functional.cross_entropy(prefix(x[k : k + 1]), y[k : k + 1]).backward()
            rows.append(torch.cat([p.grad.flatten() for p in prefix.parameters()]).numpy())
        # two of 20 without replacement: σ² / 2 · (20 - 2) / (20 - 1), σ² over all samples
        expected = np.var(rows, axis=0).mean() / 2 * 18 / 19
        assert measured[exit - 1] == pytest.approx(expected, rel=0.15)


def test_an_evaluation_measures_the_variances_where_it_is_asked_to():
    task, plain = tiny(watch_variances=True), tiny()
    w = task.init(5)
    found = task.evaluate(w)
    assert [found["variance_exit_1"], found["variance_exit_2"]] == pytest.approx(task.variances(w))
    assert found.keys() - plain.evaluate(w).keys() == {"variance_exit_1", "variance_exit_2"}


def test_balanced_goes_by_measured_variances():
    task = tiny(weighting=Balanced())
    inverse = 1 / task.variances()
    assert task.exit_weights == pytest.approx((np.array([0.5, 0.5]) + inverse / inverse.sum()) / 2)
    assert np.array_equal(task.variances(), tiny().variances())
    assert not np.allclose(task.variances(), task.variances(task.init(1)))


# Boundaries


def test_images_are_scaled_and_stay_with_their_node():
    rng = np.random.default_rng(0)
    federated = Federated(
        name="noise", classes=3, mean=(0.5,), std=(0.25,), scale=16.0, train_offsets=np.array([0, 2, 5, 9]),
        x=rng.integers(0, 17, (9, 1, 4, 4)).astype(np.uint8), y=np.arange(9) % 3,
        test_x=rng.integers(0, 17, (3, 1, 4, 4)).astype(np.uint8), test_y=np.arange(3), test_offsets=np.arange(4),
    )  # fmt: skip
    task = early_exit_task(federated, ExitCNN((2, 3)), tree=TREE, pairs=SAMPLING.pairs())
    assert np.allclose(task.train.x, (federated.x / 16 - 0.5) / 0.25, atol=1e-6)
    assert np.array_equal(task.test.offsets, federated.test_offsets)
    assert {"accuracy", "accuracy_exit_1", "accuracy_exit_2", "loss", "objective"} == set(
        task.evaluate(task.init(0))
    )


def test_a_pickled_task_is_the_same():
    task = tiny()
    again = pickle.loads(pickle.dumps(task))
    assert again.evaluate(task.init(0)) == task.evaluate(task.init(0))


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ([[0, 1], [1, 2]], "a node trains exits from 1 to its own in the tree, got exit 2 for node 1"),
        ([[0, 0]], "got exit 0 for node 0"),
        ([[3, 1]], "nodes must be from 0 to 2"),
        ([[0, 1], [0, 1]], "must be there once"),
        ([0, 1], "pairs must be \\(node, exit\\) numbers"),
    ],
)
def test_impossible_pairs_are_refused(pairs, sentence):
    with pytest.raises(BadInput, match=sentence):
        EarlyExitTask(network(), samples(SIZES), tree=TREE, pairs=pairs)


def test_a_tree_or_a_network_that_does_not_fit_is_refused():
    pairs = SAMPLING.pairs()
    with pytest.raises(BadInput, match=r"^model must make an EarlyExit\(stages, heads\), got Linear$"):
        EarlyExitTask(lambda: nn.Linear(3, 2), samples(SIZES), tree=TREE, pairs=pairs)  # type: ignore[arg-type,return-value]
    with pytest.raises(BadInput, match="the tree must have the 2 nodes of the data, got 3"):
        EarlyExitTask(network(), samples((4, 6)), tree=TREE, pairs=pairs)
    deep = Tree([2, 2, -1], [1, 1, 3], [3, 1, 0], [1, 1, 0])
    with pytest.raises(BadInput, match="the tree's exits must be from 1 to 2, those of the network, got exit 3"):
        tiny(tree=deep)
    with pytest.raises(BadInput, match="nodes that receive requests must have test samples"):
        EarlyExitTask(network(), samples(SIZES), samples((0, 2, 4)), tree=TREE, pairs=pairs, requests=own)


def test_variances_need_batches_that_differ():
    with pytest.raises(BadInput, match="batch must be below the 20 training samples"):
        tiny().variances(batch=20)
    with pytest.raises(BadInput, match="at least 2 batches"):
        tiny().variances(batches=1)


def test_a_pair_has_the_samples_of_its_node():
    """A pool orders clients by them; there are more pairs than nodes."""
    task = tiny(sampling=ExitSampling(TREE.exits, p=0.3))
    assert task.n > TREE.n
    assert task.samples.tolist() == [task.train.sizes[node] for node, _ in task.pairs]
