"""Which models have layers that faster engines know."""

import pytest
import torch
from torch import nn

from fedstale.engines.kernels.stages import Stage
from fedstale.tasks.flat import slots
from fedstale.tasks.layers import dense_sizes, stages
from fedstale.tasks.models import CNN, MLP, CifarCNN, FashionCNN, MnistCNN, PaddedCifarCNN

X = torch.zeros(2, 1, 8, 8)


def cnn(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))


def known(module: nn.Module, x: torch.Tensor = X) -> tuple[Stage, ...] | None:
    module(x.float())
    return stages(module, x, slots(module))


def test_a_cnn_is_a_sequence_of_stages() -> None:
    due = (
        Stage(1, 4, (8, 8), (3, 3), (1, 1), 2),
        Stage(4, 6, (4, 4), (3, 3), (1, 1), 2),
        Stage(24, 5),
        Stage(5, 3),
    )
    assert known(CNN((4, 6), 3, (5,)).build((1, 8, 8), 3)) == due
    conv = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]  # the usual order
    conv += [nn.Conv2d(4, 6, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
    plain = nn.Sequential(nn.Sequential(*conv), nn.Flatten(), nn.Linear(24, 5), nn.ReLU(), nn.Linear(5, 3))
    assert known(plain) == due


@pytest.mark.parametrize("model", [MnistCNN(), FashionCNN(), CifarCNN(), PaddedCifarCNN()])
def test_the_models_of_the_papers_are_known(model: MnistCNN | CifarCNN) -> None:
    shape = (3, 32, 32) if "Cifar" in type(model).__name__ else (1, 28, 28)
    found = known(model.build(shape, 10), torch.zeros(2, *shape))
    assert found is not None
    assert found[-1].outputs == 10


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(1, 4, 3, stride=2), nn.ReLU()],
        [nn.Conv2d(1, 4, 3, dilation=2), nn.ReLU()],
        [nn.Conv2d(1, 4, 3, bias=False), nn.ReLU()],
        [nn.Conv2d(1, 4, 3, padding="same"), nn.ReLU()],
        [nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular"), nn.ReLU()],
        [nn.Conv2d(1, 4, 3), nn.Tanh()],
        [nn.Conv2d(1, 4, 3), nn.MaxPool2d(2)],
        [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(3)],
        [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2, stride=1)],
        [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2)],
        [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout()],
        [nn.ReLU(), nn.Conv2d(1, 4, 3), nn.ReLU()],
    ],
    ids=lambda layers: " ".join(map(str, layers)),
)
def test_other_layers_are_left_to_others(layers: list[nn.Module]) -> None:
    assert known(cnn(*layers)) is None


def test_what_is_not_trained_or_used_twice_or_no_image_is_left_to_others() -> None:
    frozen = cnn(nn.Conv2d(1, 4, 3), nn.ReLU())
    frozen(X)
    frozen[0].weight.requires_grad_(False)
    assert known(frozen) is None
    twice = nn.Conv2d(1, 1, 3)
    assert known(cnn(twice, nn.ReLU(), twice, nn.ReLU())) is None
    assert known(MLP((5,)).build((1, 8, 8), 3)) is None
    assert known(cnn(nn.Conv2d(1, 4, 3), nn.ReLU()), X.double()) is None


def test_large_images_are_left_to_others() -> None:
    layers = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    assert known(cnn(*layers), torch.zeros(1, 1, 128, 128))
    assert known(cnn(*layers), torch.zeros(1, 1, 256, 256)) is None


def test_an_mlp_has_sizes() -> None:
    mlp = MLP((5,)).build((1, 8, 8), 3)
    assert dense_sizes(mlp, X, slots(mlp)) == (64, 5, 3)
    assert dense_sizes(nn.Linear(64, 3), X, slots(nn.Linear(64, 3))) is None  # of images that are not flat
