"""Small tasks with clients of different sizes."""

from collections.abc import Callable
from functools import partial

import numpy as np
from torch import nn

from fedstale.core.rng import stream
from fedstale.tasks.models import CNN, Linear, Model
from fedstale.tasks.supervised import Supervised

SIZES = (3, 5, 20, 20, 21, 40)  # below, around and above a batch of 16


def vectors(model: Model | Callable[[], nn.Module] = Linear(), ridge: float = 0.0) -> Supervised:
    """Six clients with vectors of eight numbers and three classes."""
    rng = stream(0, "vectors")
    data = [(rng.standard_normal((s, 8)).astype(np.float32), rng.integers(0, 3, s)) for s in SIZES]
    return Supervised(model if callable(model) else partial(model.build, (8,), 3), data, ridge=ridge)


def images(model: Model = CNN(channels=(4, 6), hidden=(5,)), ridge: float = 0.0) -> Supervised:
    """Six clients with 8 × 8 images and three classes."""
    rng = stream(0, "images")
    data = [(rng.standard_normal((s, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, s)) for s in SIZES]
    return Supervised(partial(model.build, (1, 8, 8), 3), data, ridge=ridge)
