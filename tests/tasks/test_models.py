import pytest
import torch
from torch import nn

from fedstale.core import BadInput
from fedstale.registry import MODELS
from fedstale.tasks.flat import seeded
from fedstale.tasks.models import CNN, GRU, MLP, ChannelsLast, CifarCNN, Linear, MnistCNN

GREY, COLOUR = (1, 28, 28), (3, 32, 32)


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("linear", GREY, 7_850),
        ("linear", (60,), 610),
        ("mlp", GREY, 159_010),
        ("mnist-cnn", GREY, 421_642),
        ("cifar-cnn", COLOUR, 3_353_034),
        ("fashion-cnn", GREY, 228_586),
        ("padded-cifar-cnn", COLOUR, 2_218_314),
    ],
)
def test_parameter_counts_are_the_papers(name, shape, parameters):
    module = MODELS[name]().build(shape, 10)
    assert count(module) == parameters
    assert module(torch.zeros(2, *shape)).shape == (2, 10)


def test_models_adapt_to_classes_and_settings():
    assert CifarCNN().build(COLOUR, 100)(torch.zeros(1, *COLOUR)).shape == (1, 100)
    assert count(MLP(hidden=(5, 4)).build((3,), 2)) == 3 * 5 + 5 + 5 * 4 + 4 + 4 * 2 + 2
    assert count(MLP(hidden=()).build((3,), 2)) == count(Linear().build((3,), 2))
    digits = CNN(channels=(4, 8, 8), kernel=5, hidden=()).build((1, 8, 8), 10)
    assert digits(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_the_gru_is_the_one_of_torch():
    module = GRU(embedding=3, hidden=4).build((6,), 5)
    assert count(module) == 5 * 3 + 3 * 12 + 12 + 4 * 12 + 12 + 4 * 5 + 5
    theirs = nn.GRU(3, 4, batch_first=True)
    theirs.weight_ih_l0.data, theirs.bias_ih_l0.data = module.inputs.weight.data, module.inputs.bias.data
    theirs.weight_hh_l0.data, theirs.bias_hh_l0.data = module.gates.weight.data, module.gates.bias.data
    x = torch.randint(5, (7, 6))
    expected = module.out(theirs(module.embed(x))[1][0])
    torch.testing.assert_close(module(x), expected)
    with pytest.raises(BadInput, match=r"gru takes rows of numbered symbols, got inputs \(1, 28, 28\)"):
        GRU().build(GREY, 10)


def test_every_model_has_a_line_about_it():
    for model in MODELS.values():
        assert (model.__doc__ or "").splitlines()[0].endswith(".")
        assert model() == model()


@pytest.mark.parametrize("name", ["mnist-cnn", "cifar-cnn", "fashion-cnn", "padded-cifar-cnn"])
def test_the_papers_networks_refuse_other_images(name):
    with pytest.raises(BadInput, match=rf"{name} takes \(., .., ..\) images, got \(1, 8, 8\)"):
        MODELS[name]().build((1, 8, 8), 10)


def test_bad_settings_are_refused():
    with pytest.raises(BadInput, match="kernel must be odd and at least 1, got 4"):
        CNN(kernel=4)
    with pytest.raises(BadInput, match=r"hidden must be sizes of at least 1, got \(0,\)"):
        MLP(hidden=(0,))
    with pytest.raises(BadInput, match=r"4 poolings need larger images than \(1, 8, 8\)"):
        CNN(channels=(2, 2, 2, 2)).build((1, 8, 8), 10)
    with pytest.raises(BadInput, match=r"a CNN takes \(C, H, W\) images, got inputs \(60,\)"):
        CNN().build((60,), 10)


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_changes_the_layout_and_nothing_else(channels):
    x = torch.arange(40.0 * channels).view(2, channels, 5, 4)
    y = ChannelsLast()(x)
    assert torch.equal(x, y)
    assert y.stride() == (20 * channels, 1, 4 * channels, channels)


def test_mnist_cnn_is_the_network_of_the_paper():
    """Convolution, relu, pooling in this order and the usual layout: the same outputs and gradients."""
    with seeded(0):
        ours, x = MnistCNN().build(GREY, 10), torch.rand(6, *GREY)
    plain = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    plain.load_state_dict(dict(zip(plain.state_dict(), ours.state_dict().values(), strict=True)))
    for module in (ours, plain):
        nn.functional.cross_entropy(module(x), torch.arange(6)).backward()
    for p, q in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)
