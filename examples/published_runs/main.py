"""Repeats runs that were published as curves, with the protocol of FedStale's released code, and prints the gaps.

    python main.py FOLDER                    # with minibatches of our own
    python main.py FOLDER --batches torch    # with those that the released code drew from torch

FOLDER has `published.csv`, with the columns availability, algorithm, alpha, metric, 0, 1, 2, …, and for each
availability `matrices/AVAILABILITY.csv`, a row for each client and a column for each round.
"""

import argparse
import csv
import random
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import fedstale as fs

DATA_SEED, SEED = 12345, 12  # of the division of the data; of the start and the minibatches
RULES: dict[str, fs.core.Strategy] = {
    "fedavg": fs.Unbiased(),
    "fedstale": fs.FedStale(0.5, skip_empty_rounds=True),
    "fedvarp": fs.FedStale(1.0, skip_empty_rounds=True),
}
LOCAL = fs.Local(lr=5e-3, epochs=1, batch=128, drop_last=True, weight_decay=5e-4)
SERVER = fs.Sgd(1.0, weight_decay=5e-4)


def network():
    """The CNN for MNIST, 421,642 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def divided(y, n, alpha, fraction=0.2):
    """The samples of each client: a part of all, the labels in random order, each divided by Dir(alpha)."""
    draw, proportions, labels = random.Random(DATA_SEED), np.random.RandomState(DATA_SEED), list(range(10))
    draw.shuffle(labels)
    chosen = draw.sample(range(len(y)), int(fraction * len(y)))
    groups = [[i for i in chosen if y[i] == label] for label in labels]
    for group in groups:
        draw.shuffle(group)
    clients = [[] for _ in range(n)]
    for group in groups:
        counts = proportions.multinomial(len(group), proportions.dirichlet([alpha] * n))
        for client, mine in zip(clients, np.split(group, np.cumsum(counts)[:-1]), strict=True):
            client.append(mine)
    return [np.concatenate(client) for client in clients]


class TorchBatches(fs.Supervised):
    """Minibatches in the order in which torch's DataLoader gave them, `orders`."""

    orders: dict[tuple[int, int], np.ndarray]  # any order for a trial with clients that are away

    def round_batches(self, t, client, local, rng):
        draws = SimpleNamespace(permutation=lambda size: self.orders.get((t, client), np.arange(size)))
        return self.batches(client, local, draws)  # type: ignore[arg-type]  # in the place of rng


def torch_seed():
    """What a loader draws from torch's one generator: a seed of its own and, if it shuffles, one more for that."""
    return int(torch.empty((), dtype=torch.int64).random_())


def torch_orders(available, sizes):
    """(round, client) -> the shuffle of the client's samples in the released code."""
    orders, (rounds, n) = {}, available.shape
    torch.manual_seed(SEED)
    for _ in range(n + 2):  # models: the global one, one that remembers each client, and one for their mean
        network()
    for t in range(1, rounds + 1):
        for _ in range(2 * n):  # the evaluation before the round has two loaders for each client
            torch_seed()
        for client in np.flatnonzero(available[t - 1]).tolist():
            _, seed = torch_seed(), torch_seed()
            generator = torch.Generator().manual_seed(seed)
            orders[t, client] = torch.randperm(int(sizes[client]), generator=generator).numpy()
    return orders


def task_of(n, alpha, available, batches):
    """The task: MNIST's official test samples among those that are used are the test set of all clients."""
    images, kind = fs.data.load("mnist"), TorchBatches if batches == "torch" else fs.Supervised
    x = (torch.from_numpy(np.array(images.x)).float() / 255 - 0.1307) / 0.3081
    y = torch.from_numpy(np.array(images.y)).long()
    clients = divided(images.y, n, alpha)
    train = [(x[mine], y[mine]) for mine in (c[c < images.n_train] for c in clients)]
    rest = np.concatenate([c[c >= images.n_train] for c in clients])
    torch.manual_seed(SEED)
    task = kind(network(), train, central_test=(x[rest], y[rest]), weights="per-sample")
    if isinstance(task, TorchBatches):
        task.orders = torch_orders(available, task.samples)
    return task


def published(folder):
    """{(availability, alpha): {algorithm: its test accuracy before the first round and after each}}."""
    found = {}
    for row in csv.DictReader((folder / "published.csv").read_text().splitlines()):
        if row["metric"] == "test_accuracy":
            curve = [float(value) for key, value in row.items() if key.isdigit() and value]
            found.setdefault((row["availability"], float(row["alpha"])), {})[row["algorithm"]] = curve
    return found


def draw(axes, curves, runs, title):
    """The published curves, and ours as dots."""
    for k, (name, curve) in enumerate(curves.items()):
        ours = {line["round"]: 100 * line["accuracy"] for line in runs[name].metrics() if "accuracy" in line}
        axes.plot(100 * np.array(curve), color=f"C{k}", lw=0.8, alpha=0.7, label=f"{name}, published")
        axes.plot(*zip(*ours.items(), strict=True), "o", color=f"C{k}", ms=3.5, label=f"{name}, here")
    axes.set(title=title, xlabel="round", ylabel="test accuracy (%)")
    axes.legend(fontsize=7)


def main():
    """Trains, prints a line for each run, and draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", choices=("own", "torch"), default="own")
    parser.add_argument("--seed", type=int, default=SEED, help="of minibatches of our own")
    settings = published((asked := parser.parse_args()).folder)
    figure, places = plt.subplots(1, len(settings), figsize=(10, 4), squeeze=False, layout="constrained")
    print("availability, algorithm: published, here, gap in points after the last round")
    for axes, ((availability, alpha), curves) in zip(places[0], settings.items(), strict=True):
        process = fs.Trace(asked.folder / "matrices" / f"{availability}.csv", clients_first=True)
        available = process.recording()  # (rounds, n)
        task = task_of(available.shape[1], alpha, available, asked.batches)
        found = fs.compare(
            task, {name: RULES[name] for name in curves}, process, rounds=len(available), seeds=(asked.seed,),
            local=LOCAL, server=SERVER, evaluate="test", evaluate_every=5, resume=True, name=availability,
        )  # fmt: skip
        runs = dict(zip(curves, found.runs, strict=True))
        for name, curve in curves.items():
            last = runs[name].metrics()[-1]["accuracy"]
            print(f"{availability}, {name}: {curve[-1]:.4f}, {last:.4f}, {100 * (last - curve[-1]):+.2f}")
        draw(axes, curves, runs, availability)
    figure.savefig(f"published-{asked.batches}.png", dpi=150)


if __name__ == "__main__":
    main()
