"""Regression with the mean squared error and a metric of one's own: thermometers, some of them seldom heard."""

from typing import Any

import numpy as np
import torch
from torch import nn

import fedstale as fs


def sensor(offset, samples=80):
    """(x, y) of one thermometer: hour of the day and raw reading, and the true temperature."""
    hour = 24 * torch.rand(samples)
    true = 15 + 8 * torch.sin((hour - 9) * np.pi / 12) + offset
    raw = 0.9 * true + 3 + 0.3 * torch.randn(samples)
    return torch.stack([hour / 24, raw / 30], dim=1), (true / 30)[:, None]


def model():
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))


def mae(outputs, targets):
    """The mean absolute error in degrees."""
    return 30 * (outputs - targets).abs().mean()


if __name__ == "__main__":  # engines may start processes, which read this file again
    torch.manual_seed(0)
    offsets = [0.0] * 6 + [-12.0] * 6  # the last six are in the mountains
    train, test = ([sensor(offset) for offset in offsets] for _ in range(2))
    task = fs.Supervised(model, train, test, loss=nn.MSELoss(), metrics={"mae": mae})
    settings: dict[str, Any] = {"rounds": 60, "seeds": (1, 2), "local": fs.Local(lr=0.05, steps=5, batch=16)}
    found = fs.compare(task, ["fedavg", "auto"], fs.TwoGroups(p_min=0.1), **settings, name="thermometers")
    found.table()  # then: fedstale report runs
    for run in found.runs[:2]:
        error = task.per_client(run.params())["mae"]
        print(
            f"{run.path.name:20} valley {error[:6].mean():.2f} degrees   mountains {error[6:].mean():.2f} degrees"
        )
