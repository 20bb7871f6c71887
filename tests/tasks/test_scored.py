"""Test sets beside that of every client: a central one, validation samples, clients that never train."""

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

from fedstale.core import BadInput, Local
from fedstale.engines import Serial
from fedstale.tasks.split import by_samples
from fedstale.tasks.supervised import Supervised
from tests.tasks.test_supervised import filled, mlp, pairs

TRAIN = pairs((20, 7, 33))


def scores(task, params, x, y):
    """Accuracy and loss of one set of samples, by torch alone."""
    outputs, targets = filled(task, params)(torch.tensor(x)).detach(), torch.tensor(y)
    return (outputs.argmax(1) == targets).double().mean().item(), functional.cross_entropy(outputs, targets).item()


@pytest.mark.parametrize("lazy", [False, True], ids=["tensors", "dataset"])
def test_a_central_test_set_is_scored_over_its_samples_alike(lazy):
    ((x, y),) = pairs((300,), seed=1)
    central = TensorDataset(torch.tensor(x), torch.tensor(y)) if lazy else (x, y)
    task = Supervised(mlp, TRAIN, central_test=central, weights=by_samples)
    params = task.init(0)
    found = task.evaluate(params)
    assert (found["accuracy"], found["loss"]) == pytest.approx(scores(task, params, x, y), rel=1e-5)
    assert set(task.per_client(params)) == {"objective"}


def test_the_bits_of_a_central_test_set_are_those_of_one_client_with_it():
    test = pairs((40, 0, 0), seed=1)
    central, copied = Supervised(mlp, TRAIN, central_test=test[0]), Supervised(mlp, TRAIN, test)
    params = central.init(0)
    assert central.evaluate(params) == copied.evaluate(params)


@pytest.mark.parametrize("weights", [[0.5, 0.0, 0.5], by_samples], ids=["given", "samples"])
def test_validation_samples_are_averaged_by_the_weights_of_the_clients(weights):
    held = pairs((9, 5, 4), seed=2)
    task = Supervised(mlp, TRAIN, validation=held, weights=weights)
    params, a = task.init(0), task.weights.astype(float)
    each = np.array([scores(task, params, x, y) for x, y in held])
    found, clients = task.evaluate(params), task.per_client(params)
    assert [found["validation_accuracy"], found["validation_loss"]] == pytest.approx(a @ each, rel=1e-5)
    assert np.allclose(clients["validation_accuracy"], each[:, 0])
    assert "accuracy" not in found


@pytest.mark.parametrize(("weights", "a"), [([0.5, 0, 0.5], [0.5, 0.5]), (by_samples, [0.9, 0.1])])
def test_held_out_clients_are_scored_and_do_not_train(weights, a):
    others = pairs((9, 1), seed=3)
    task = Supervised(mlp, TRAIN, held_out=others, weights=weights)
    params = task.init(0)
    each = np.array([scores(task, params, x, y) for x, y in others])
    found = task.evaluate(params)
    assert [found["held_out_accuracy"], found["held_out_loss"]] == pytest.approx(np.array(a) @ each, rel=1e-5)
    assert task.n == 3
    assert set(task.per_client(params)) == {"objective"}, "one value for each client that trains"


def test_other_test_sets_change_nothing_in_training():
    more = {"central_test": pairs((5,))[0], "validation": pairs((2, 2, 2)), "held_out": pairs((4,))}
    plain, task = Supervised(mlp, TRAIN), Supervised(mlp, TRAIN, **more)
    batch = next(iter(task.batches(1, Local(0.1), np.random.default_rng(0))))
    for one, other in zip(*(t.gradient(plain.init(0), 1, batch) for t in (plain, task)), strict=True):
        assert np.array_equal(one, other)
    assert Serial(task, Local(0.1)).task.n == plain.n


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"test": TRAIN, "central_test": TRAIN[0]}, "give test or central_test, got both"),
        ({"validation": TRAIN[:2]}, "validation must have 3 clients, got 2"),
        ({"central_test": TRAIN}, r"central_test must be one pair \(x, y\) or one Dataset, got list"),
        ({"held_out": TRAIN[0]}, r"held_out: samples must be one \(x, y\) pair per client"),
        ({"held_out": []}, "at least one client"),
        ({"central_test": (TRAIN[0][0], TRAIN[0][1] + 7)}, "class numbers from 0 to 2"),
    ],
)
def test_what_cannot_be_scored_is_refused(more, sentence):
    with pytest.raises(BadInput, match=sentence):
        Supervised(mlp, TRAIN, **more)
