"""ResNet-18 with BatchNorm on CIFAR-10: the running statistics of its layers are averaged beside the parameters.

The images are downloaded (170 MB) unless they are there already.
"""

from typing import Any

import torch
from torch import nn

import fedstale as fs

WIDTH = 16  # channels of the first layer; 64 in the paper


class Block(nn.Module):
    """Two convolutions with BatchNorm, to which the input is added."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.skip = nn.Identity() if inputs == outputs else short

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


def resnet18():
    """Four pairs of blocks, each half as large and twice as wide as the one before, for images of 32 × 32."""
    stem = nn.Sequential(nn.Conv2d(3, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU())
    blocks = [Block(WIDTH, WIDTH, 1), Block(WIDTH, WIDTH, 1)]
    for width in (2 * WIDTH, 4 * WIDTH, 8 * WIDTH):
        blocks += [Block(width // 2, width, 2), Block(width, width, 1)]
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * WIDTH, 10))


def flipped(x, generator):
    """Half of the images of a batch (b, 3, 32, 32), mirrored."""
    half = torch.rand(len(x), 1, 1, 1, generator=generator, device=generator.device) < 0.5
    return torch.where(half, x.flip(3), x)


if __name__ == "__main__":  # engines may start processes, which read this file again
    images = fs.data.load("cifar-10")
    clients = fs.data.federate(images, fs.data.Dirichlet(0.5), 20, seed=0, fraction=0.1)
    task = fs.image_task(clients, resnet18, transform=flipped)
    local = fs.Local(lr=0.05, epochs=1, batch=32, drop_last=True, momentum=0.9, weight_decay=5e-4)
    settings: dict[str, Any] = {"rounds": 40, "seeds": (1,), "local": local, "name": "resnet18", "resume": True}
    found = fs.compare(task, ["fedavg", "auto"], fs.TwoGroups(p_min=0.2), **settings)
    found.table()  # then: fedstale report runs

    best = found.runs[-1]
    torch.save(task.model(best.params(), best.buffers()).state_dict(), "resnet18.pt")
    print(task.d, "parameters, and", len(best.buffers()), "numbers in buffers")
