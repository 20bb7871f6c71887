"""What is learned: a linear classifier of 8 × 8 digits, which ship with fedstale, unequally divided among six."""

import torch
from torch import Tensor, nn

from fedstale import data

CLIENTS = 6


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def samples(client: int, test: bool = False) -> tuple[Tensor, Tensor]:
    """The samples of one client, scaled to [0, 1]."""
    divided = data.federate(data.load("digits"), data.Dirichlet(alpha=1.0), CLIENTS, seed=0)
    x, y = divided.test(client) if test else divided.train(client)
    return torch.from_numpy(x).float() / divided.scale, torch.from_numpy(y)
