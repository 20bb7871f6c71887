"""What it costs in training to fetch samples from torch datasets: `python benchmarks/lazy_data.py`.

CPU time of CNNs on 28 × 28 images, 8 clients, 5 steps of 32 samples each. Rounds with datasets and with tensors
alternate, and the ratio of each pair counts, so that other load on the machine disturbs both alike.
"""

import time
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

import fedstale as fs
from fedstale.core import Job
from fedstale.tasks.models import CNN, MnistCNN

LOCAL = fs.Local(lr=0.01, steps=5, batch=32)


class Bytes(Dataset[tuple[torch.Tensor, int]]):
    """Images as bytes, which are turned into numbers one by one, as those of files are."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = (50 * x + 100).clip(0, 255).byte().numpy(), y.tolist()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.x[index].astype(np.float32)), self.y[index]


def seconds(engine: fs.Serial, t: int) -> float:
    """CPU time of one round in which all clients train."""
    task, start = engine.task, time.process_time()
    engine.train([Job(task.init(0), np.arange(task.n), 0, t, LOCAL)])
    return time.process_time() - start


def main(rounds: int = 8) -> None:
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    pairs = [
        (torch.randn(400, 1, 28, 28, generator=draw), torch.randint(0, 10, (400,), generator=draw))
        for _ in range(8)
    ]
    forms: dict[str, Any] = {
        "TensorDataset": [TensorDataset(*p) for p in pairs],
        "bytes": [Bytes(*p) for p in pairs],
    }
    for model in (MnistCNN(), CNN()):
        plain = fs.Serial(fs.Supervised(partial(model.build, (1, 28, 28), 10), pairs), LOCAL)
        for name, data in forms.items():
            lazy = fs.Serial(fs.Supervised(partial(model.build, (1, 28, 28), 10), data), LOCAL)
            ratios = [seconds(lazy, t) / seconds(plain, t) for t in range(1, rounds + 1)]
            print(f"{type(model).__name__:10} {name:14} {np.median(ratios[1:]):.2f} × the time of tensors")


if __name__ == "__main__":
    main()
