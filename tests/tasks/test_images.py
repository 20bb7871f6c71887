import numpy as np
import pytest
import torch

from fedstale.core import BadInput, Local
from fedstale.core.rng import stream
from fedstale.data.federated import Federated
from fedstale.tasks.images import image_task
from fedstale.tasks.models import CNN, Linear, MnistCNN
from fedstale.tasks.split import by_samples


@pytest.fixture
def federated():
    rng = np.random.default_rng(0)
    return Federated(
        name="noise",
        x=rng.integers(0, 17, (12, 3, 8, 8)).astype(np.uint8),
        y=np.arange(12) % 4,
        train_offsets=np.array([0, 4, 5, 12]),
        test_x=rng.integers(0, 17, (5, 3, 8, 8)).astype(np.uint8),
        test_y=np.arange(5) % 4,
        test_offsets=np.array([0, 2, 2, 5]),
        classes=4,
        mean=(0.1, 0.2, 0.3),
        std=(0.5, 1.0, 2.0),
        scale=16.0,
    )


def test_pixels_are_scaled_per_channel(federated):
    task = image_task(federated, Linear())
    for pixels, tensor in ((federated.x, task.train.x), (federated.test_x, task.test.x)):
        for channel, (mean, std) in enumerate(zip(federated.mean, federated.std, strict=True)):
            expected = (pixels[:, channel] / 16.0 - mean) / std
            assert np.allclose(tensor[:, channel], expected, atol=1e-6)
        assert tensor.dtype == torch.float32


def test_samples_stay_with_their_client(federated):
    task = image_task(federated, CNN(), weights=by_samples, ridge=0.1)
    assert (task.n, task.ridge) == (3, 0.1)
    assert np.array_equal(task.train.offsets, federated.train_offsets)
    assert np.array_equal(task.test.offsets, federated.test_offsets)
    assert np.array_equal(task.train.y, federated.y)
    assert np.array_equal(task.test.y, federated.test_y)
    assert np.allclose(task.weights, np.array([4, 1, 7]) / 12)
    assert set(task.evaluate(task.init(0))) == {"accuracy", "loss", "objective"}


def normed():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(192), torch.nn.Linear(192, 4))


def test_a_function_that_makes_a_module_is_a_model_too(federated):
    assert image_task(federated, normed).averaged == ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert image_task(federated, normed, buffers="frozen").averaged == ()
    seen = []
    task = image_task(federated, normed, transform=lambda x, generator: seen.append(len(x)) or x)
    seen.clear()  # it was tried
    task.gradient(task.init(0), 0, next(task.batches(0, Local(0.1, batch=2), stream(0))))
    assert seen == [2]


def test_a_model_for_other_images_is_refused(federated):
    with pytest.raises(BadInput, match=r"mnist-cnn takes \(1, 28, 28\) images, got \(3, 8, 8\)"):
        image_task(federated, MnistCNN())


def test_clients_that_are_not_federated_are_refused():
    with pytest.raises(BadInput, match=r"image_task takes what fs.data.federate returns, got \[1, 2\]; Supervised"):
        image_task([1, 2], Linear())
