"""What is learned: a small CNN on 8 × 8 digits, which come with fedstale. Nothing is downloaded."""

from functools import cache

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedstale import data


class Net(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classifier = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(x).flatten(1))
        return scores


@cache
def samples(test: bool) -> tuple[Tensor, Tensor]:
    """Images (m, 1, 8, 8) in [0, 1] and their labels: every fifth is for tests."""
    digits = data.load("digits")
    chosen = (torch.arange(len(digits.y)) % 5 == 0) == test
    x, y = torch.from_numpy(digits.x).float().reshape(-1, 1, 8, 8) / digits.scale, torch.from_numpy(digits.y).long()
    return x[chosen], y[chosen]


def load_data(partition_id: int, num_partitions: int) -> TensorDataset:
    """The data of a client: the first half of the clients hold the digits 0 to 4, the others 5 to 9."""
    x, y = samples(test=False)
    half = num_partitions // 2
    mine = torch.nonzero((y < 5) == (partition_id < half)).flatten()[partition_id % half :: half]
    return TensorDataset(x[mine], y[mine])


def train(net: nn.Module, dataset: TensorDataset, epochs: int, lr: float, seed: int) -> float:
    """Train with SGD and momentum; returns the mean loss."""
    batches = DataLoader(dataset, batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(seed))
    optimizer, total = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9), 0.0
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(batches))


@torch.no_grad()
def test(net: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Loss and accuracy."""
    scores = net(x)
    return float(nn.functional.cross_entropy(scores, y)), float((scores.argmax(1) == y).float().mean())
