"""Losses, metrics and inputs as users have them: torch's losses with any reduction, sequences, tuples and dicts."""

from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedstale.core import BadInput, Job, Local
from fedstale.core.rng import stream
from fedstale.engines import Serial
from fedstale.engines.batched.engine import Batched
from fedstale.engines.processes.pool import Pool
from fedstale.tasks.evaluation import EVALUATION_BATCH, by_client, client_scores, spans
from fedstale.tasks.local import minibatches
from fedstale.tasks.losses import correct, cross_entropy, scored_cross_entropy
from fedstale.tasks.supervised import Supervised

SIZES, LOCAL = (300, 5, 33), Local(0.1, steps=3, batch=8)  # the first needs two batches of an evaluation


def vectors(targets, sizes=SIZES, seed=0):
    """(x, y) pairs, where `targets` makes y (k, …) from a generator."""
    rng = torch.Generator().manual_seed(seed)
    return [(torch.randn(k, 4, generator=rng), targets(k, rng)) for k in sizes]


def classes(k, rng):
    return torch.randint(0, 3, (k,), generator=rng)


def reals(k, rng):
    return torch.randn(k, 3, generator=rng)


def bits(k, rng):
    return torch.randint(0, 2, (k, 3), generator=rng).float()


LOSSES = {
    "mean": (nn.CrossEntropyLoss(), classes),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), classes),
    "none": (nn.CrossEntropyLoss(reduction="none"), classes),
    "weights": (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0])), classes),
    "smooth": (nn.CrossEntropyLoss(label_smoothing=0.1), classes),
    "soft": (nn.CrossEntropyLoss(), lambda k, rng: reals(k, rng).softmax(1)),
    "mse": (nn.MSELoss(), reals),
    "mse-sum": (nn.MSELoss(reduction="sum"), reals),
    "mse-none": (nn.MSELoss(reduction="none"), reals),
    "bce": (nn.BCEWithLogitsLoss(), bits),
    "function": (functional.l1_loss, reals),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_torch_loss_trains_as_in_a_plain_loop_bit_for_bit_and_averages_over_each_clients_samples(name):
    loss, targets = LOSSES[name]
    data, test = vectors(targets), vectors(targets, (7, 0, 260), seed=1)
    task = Supervised(lambda: nn.Linear(4, 3), data, test, loss=loss)
    start, sums = task.init(0), getattr(loss, "reduction", "") == "sum"
    reply = Serial(task, LOCAL).train([Job(start, np.arange(3), 0, 1, LOCAL)])[0]
    for client, (x, y) in enumerate(data):
        model = nn.Linear(4, 3)
        nn.utils.vector_to_parameters(torch.tensor(start), model.parameters())
        for step, rows in enumerate(minibatches(len(y), LOCAL, stream(0, "local", 1, client))):
            model.zero_grad()
            value = loss(model(x[rows]), y[rows]).mean()
            value.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= LOCAL.lr * p.grad
            if step == 0:
                assert reply.losses[client] == np.float32((value / len(rows) if sums else value).item())
        final = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
        assert np.array_equal(reply.updates[client], final - start)
    model = nn.Linear(4, 3)
    nn.utils.vector_to_parameters(torch.tensor(start), model.parameters())
    found = task.per_client(start)
    for scores, pairs in ((found["objective"], data), (found["loss"], test)):
        for score, (x, y) in zip(scores, pairs, strict=True):
            due = loss(model(x), y).mean().item() / (len(y) if sums else 1) if len(y) else np.nan
            assert score == pytest.approx(due, rel=1e-5, nan_ok=True)
    assert ("accuracy" in found) == (targets is classes)


@pytest.mark.parametrize("name", LOSSES)
def test_batched_takes_the_same_losses(name):
    loss, targets = LOSSES[name]
    task = Supervised(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), vectors(targets), loss=loss
    )
    job = Job(task.init(0), np.arange(3), 0, 1, LOCAL)
    due, got = (engine(task, LOCAL).train([job])[0] for engine in (Serial, Batched))
    assert np.allclose(got.updates, due.updates, atol=1e-5)
    assert np.allclose(got.losses, due.losses, rtol=1e-5)


def test_torchs_cross_entropy_keeps_the_closed_form_of_the_default():
    ours, torchs = (Supervised(lambda: nn.Linear(4, 3), vectors(classes), vectors(classes), **loss)
                    for loss in ({}, {"loss": nn.CrossEntropyLoss()}))  # fmt: skip
    assert ours.dense == torchs.dense == (4, 3)
    assert ours.evaluate(ours.init(0)) == torchs.evaluate(ours.init(0))


class Tagger(nn.Module):
    """(b, t) numbers of words to (b, t, 3), optionally masked; a Hugging Face model if `wrapped`."""

    def __init__(self, wrapped=False):
        super().__init__()
        self.words, self.out, self.wrapped = nn.Embedding(7, 4), nn.Linear(4, 3), wrapped

    def forward(self, ids, mask=None, labels=None):
        logits = self.out(self.words(ids) * (1 if mask is None else mask[..., None]))
        if not self.wrapped:
            return logits
        loss = None if labels is None else functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return SimpleNamespace(logits=logits, loss=loss)


def sentences(sizes=SIZES, seed=0):
    rng = torch.Generator().manual_seed(seed)
    for k in sizes:
        ids, y = (torch.randint(0, high, (k, 6), generator=rng) for high in (7, 3))
        yield ids, (torch.rand(k, 6, generator=rng) < 0.7).float(), y


def test_sequences_have_the_mean_loss_and_accuracy_over_their_positions():
    data = [(ids, y) for ids, _, y in sentences()]
    task = Supervised(Tagger, data, data)
    params, model = task.init(1), Tagger()
    nn.utils.vector_to_parameters(torch.tensor(params), model.parameters())
    found = task.per_client(params)
    for client, (ids, y) in enumerate(data):
        logits = model(ids)
        assert found["loss"][client] == pytest.approx(functional.cross_entropy(logits.mT, y).item(), rel=1e-5)
        assert found["accuracy"][client] == pytest.approx((logits.argmax(-1) == y).float().mean().item())


def test_classes_of_sequences_are_last():
    class Turned(torch.nn.Embedding):
        def forward(self, x):
            return super().forward(x).transpose(1, 2)  # (b, classes, t), as torch's cross entropy has it

    x = torch.arange(12).reshape(2, 6) % 5
    with pytest.raises(BadInput, match=r"with the classes last \(leave out a transpose\(1, 2\)\), got \(2, 5, 6\)"):
        Supervised(lambda: Turned(5, 5), [(x, x)])


def test_positions_that_are_ignored_do_not_count():
    outputs, targets = torch.randn(2, 3, 4), torch.tensor([[1, -100, -100], [2, 0, -100]])
    rows = [functional.cross_entropy(outputs[i], targets[i]).item() for i in (0, 1)]
    assert cross_entropy(outputs, targets).tolist() == pytest.approx(rows)
    targets[0, 0] = outputs[0, 0].argmax()
    assert correct(outputs, targets)[0] == 1


FORMS = {  # the same samples in every form of inputs
    "plain": (lambda ids, mask, y: ids, Tagger),
    "tuple": (lambda ids, mask, y: (ids, torch.ones_like(mask)), Tagger),
    "dict": (lambda ids, mask, y: {"mask": torch.ones_like(mask), "ids": ids}, Tagger),
    "logits": (lambda ids, mask, y: {"ids": ids}, partial(Tagger, True)),
    "loss": (lambda ids, mask, y: {"ids": ids, "labels": y}, partial(Tagger, True)),
}


@pytest.mark.parametrize("form", [name for name in FORMS if name != "plain"])
@pytest.mark.parametrize("engine", [Serial, partial(Pool, workers=1), Batched], ids=["Serial", "Pool", "Batched"])
def test_the_same_samples_give_the_same_numbers_in_every_form(form, engine):
    def result(name, engine):
        inputs, model = FORMS[name]
        data = [(inputs(*sample), sample[-1]) for sample in sentences()]
        task = Supervised(model, data, data)
        job = Job(task.init(0), np.arange(3), 0, 1, LOCAL)
        made = engine(task, LOCAL)
        reply = made.train([job])[0]
        if isinstance(made, Pool):
            made.close()
        return reply, task.evaluate(job.params)

    (due, scores), (got, found) = result("plain", Serial), result(form, engine)
    assert np.allclose(got.updates, due.updates, atol=1e-6)
    assert np.allclose(got.losses, due.losses, rtol=1e-5)
    assert found == pytest.approx(scores, rel=1e-5)
    if form != "loss" and engine is not Batched:
        assert np.array_equal(got.updates, due.updates)


def test_inputs_that_do_not_fit_together_are_refused():
    ids, mask, y = next(sentences((4,)))
    with pytest.raises(BadInput, match=r"all inputs must have as many rows, got \[3, 4\]"):
        Supervised(Tagger, [((ids, mask[:3]), y)])
    with pytest.raises(BadInput, match="all clients must have the same inputs, got others for client 1"):
        Supervised(Tagger, [((ids, mask), y), (ids, y)])
    with pytest.raises(BadInput, match=r"the model must take inputs \(2, 6\), \(2, 6\) of .*, got: .*nonsense"):
        Supervised(Tagger, [({"ids": ids, "nonsense": mask}, y)])


def recall(outputs, targets):
    return (outputs.argmax(1) == targets)[targets == 2].float().mean()


def margin(outputs, targets):
    return outputs.max(1).values.numpy()  # a value per sample


def test_metrics_see_all_outputs_of_a_client_at_once_and_are_averaged_by_weight():
    data, sizes = vectors(classes), (300, 0, 40)
    test = vectors(classes, sizes, seed=2)
    metrics = {"recall": recall, "margin": margin, "seen": lambda outputs, y: len(y)}
    task = Supervised(lambda: nn.Linear(4, 3), data, test, metrics=metrics, weights=[1, 1, 3])
    params, model = task.init(0), nn.Linear(4, 3)
    nn.utils.vector_to_parameters(torch.tensor(params), model.parameters())
    found, means = task.per_client(params), task.evaluate(params)
    assert found["seen"][[0, 2]].tolist() == [300, 40]
    for client in (0, 2):
        x, y = test[client]
        assert found["recall"][client] == pytest.approx(recall(model(x), y).item())
        assert found["margin"][client] == pytest.approx(model(x).max(1).values.mean().item(), rel=1e-5)
    assert all(np.isnan(found[name][1]) for name in metrics)
    for name in metrics:
        assert means[name] == pytest.approx((found[name][0] + 3 * found[name][2]) / 4)
    assert {*means} == {"accuracy", "loss", "objective", *metrics}
    assert task.test_scores(params) == {name: means[name] for name in means if name != "objective"}


@pytest.mark.parametrize("value", [None, "high", torch.zeros(2)])
def test_a_metric_returns_a_number_or_one_per_sample(value):
    data = vectors(classes)
    task = Supervised(lambda: nn.Linear(4, 3), data, data, metrics={"odd": lambda outputs, y: value})
    with pytest.raises(BadInput, match="metric 'odd' must return a number, or one for each of 300 samples, got"):
        task.evaluate(task.init(0))


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.lists(st.integers(1, 7), min_size=1, max_size=9))
def test_batches_are_gathered_by_client_however_they_are_cut(sizes, cuts):
    offsets, rows = np.cumsum([0, *sizes]), torch.arange(sum(sizes))
    where = [0, *np.minimum(np.cumsum(cuts), len(rows)).tolist(), len(rows)]
    batches = [(rows[a:b], rows[a:b]) for a, b in pairwise(where) if a < b]
    found = {client: outputs.tolist() for client, outputs, _ in by_client(batches, offsets)}
    assert found == {i: list(range(a, b)) for i, (a, b) in enumerate(pairwise(offsets)) if a < b}


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 600), min_size=1, max_size=5), st.booleans())
def test_spans_cover_every_row_once_in_order(sizes, across):
    offsets = np.cumsum([0, *sizes])
    found = list(spans(offsets, across, EVALUATION_BATCH))
    assert [row for a, b in found for row in range(a, b)] == list(range(offsets[-1]))
    inside = [any(low <= a and b <= high for low, high in pairwise(offsets)) for a, b in found]
    assert across or all(inside)


def test_without_metrics_no_outputs_are_gathered():
    answers = [(torch.zeros(2, 3), torch.zeros(2)), (torch.zeros(1, 5), torch.zeros(1))]  # could not be joined
    found = client_scores(answers, np.array([0, 3]), {"one": lambda said, y: torch.ones(len(y))}, {})
    assert found["one"].tolist() == [1]


@pytest.mark.parametrize("count", [2, 3, 7, 8, 10, 15, 16, 17, 62])
def test_the_scored_cross_entropy_has_the_bits_of_torchs(count):
    rng = torch.Generator().manual_seed(count)
    outputs, y = 5 * torch.randn(30011, count, generator=rng), torch.randint(0, count, (30011,), generator=rng)
    outputs[0, 0], outputs[1, 1], outputs[2], y[3] = float("inf"), float("nan"), -float("inf"), -100
    for rows in (slice(size) for size in (1, 15, 16, 17, 3153, None)):
        due = cross_entropy(outputs[rows], y[rows])
        np.testing.assert_array_equal(scored_cross_entropy(outputs[rows], y[rows]), due)


def test_an_evaluation_passes_a_small_mlp_over_all_samples_at_once():
    passed, model = [], partial(nn.Sequential, nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    task = Supervised(model, vectors(classes, (900, 300)), vectors(classes, (200, 400)))
    task.working.flat.module.register_forward_hook(lambda module, inputs, outputs: passed.append(len(outputs)))
    task.evaluate(task.init(0))
    assert passed == [1200, 600]
