"""Flower's two quickstarts with nodes that crash: its FedAvg and `FedStale("auto")`, through Flower's messages.

    python benchmarks/flower_quickstarts.py [--apps pytorch sklearn] [--splits iid skewed] [--seeds 21 22 23]

quickstart-pytorch: its CNN on CIFAR-10, 500 images for each of ten nodes, one epoch a round, batches of 32, rate
0.01, momentum 0.9. quickstart-sklearn: its LogisticRegression (saga, one pass a round, warm start) on MNIST, 200
images a node. The second half of the nodes crashes in 80 % of the rounds. `iid` deals the images out evenly;
`skewed` gives the first half of the nodes 90 % low labels and the second half 90 % high ones, so labels follow
presence. Accuracy is that on 2,000 test images, the mean of the last five rounds up to rounds 25 and 100.
Curves are kept in a file (--store), so a run that was stopped goes on where it was. FEDSTALE_DATA is the folder of
the data sets; it needs `pip install '.[flower]' scikit-learn`.
"""

import argparse
import json
import logging
import random
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg
from torch import nn

import fedstale as fs
from fedstale.flower import FedStale
from tests.flower.direct import Direct, away, reply

NODES, ROUNDS, MARKS, LAST, HERE = 10, 100, (25, 100), 5, 0.2
RULES: dict[str, Callable[..., Any]] = {
    "FedAvg": FedAvg,
    "auto": partial(FedStale, "auto"),
    "auto, defence=True": partial(FedStale, "auto", defence=True),
}
Images = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
Weights = dict[str, np.ndarray[Any, Any]]


class Torch:
    """quickstart-pytorch."""

    data, each = "cifar-10", 500

    def __init__(self) -> None:
        self.net = nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip

    def weights(self) -> Weights:
        return {name: value.numpy().copy() for name, value in self.net.state_dict().items()}

    def load(self, weights: Weights) -> None:
        self.net.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in weights.items()})

    def train(self, images: Images, seed: int) -> None:
        x, y = map(torch.from_numpy, images)
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9)
        for batch in torch.randperm(len(y), generator=torch.Generator().manual_seed(seed)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(self.net(x[batch]), y[batch]).backward()
            optimizer.step()

    def accuracy(self, images: Images) -> float:
        with torch.no_grad():
            return float((self.net(torch.from_numpy(images[0])).argmax(1).numpy() == images[1]).mean())


class Sklearn:
    """quickstart-sklearn."""

    data, each = "mnist", 200

    def __init__(self) -> None:
        from sklearn.linear_model import LogisticRegression

        self.model = LogisticRegression(max_iter=1, warm_start=True, solver="saga")
        self.load({"coef": np.zeros((10, 784)), "intercept": np.zeros(10)})
        self.model.classes_ = np.arange(10)

    def weights(self) -> Weights:
        return {"coef": self.model.coef_, "intercept": self.model.intercept_}

    def load(self, weights: Weights) -> None:
        self.model.coef_, self.model.intercept_ = weights["coef"].copy(), weights["intercept"].copy()

    def train(self, images: Images, seed: int) -> None:
        self.model.random_state = seed
        with warnings.catch_warnings(action="ignore"):  # one pass does not converge
            self.model.fit(images[0].reshape(len(images[1]), -1), images[1])

    def accuracy(self, images: Images) -> float:
        return float(self.model.score(images[0].reshape(len(images[1]), -1), images[1]))


APPS: dict[str, Any] = {"pytorch": Torch, "sklearn": Sklearn}


def dealt(app: type[Torch] | type[Sklearn], split: str, seed: int) -> tuple[list[Images], Images]:
    """The images of every node, and those of the test."""
    whole = fs.data.federate(fs.data.load(app.data), fs.data.IID(), 1, seed=seed, test="official")
    assert whole.central_test is not None
    rng, test = np.random.default_rng(seed), whole.central_test
    of = [rng.permutation(np.flatnonzero(whole.y == k)) for k in range(10)]
    low, high = (
        [row for some in zip(*rows, strict=False) for row in some] for rows in (of[:5], of[5:])
    )  # in turns

    def images(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], rows: Any) -> Images:
        return ((x[rows] / whole.scale - 0.5) / 0.5).astype(np.float32), y[rows].astype(np.int64)

    nodes = []
    for k in range(NODES):
        share = 0.5 if split == "iid" else 0.9 if k < NODES // 2 else 0.1
        rows = [low.pop() for _ in range(round(share * app.each))]
        nodes.append(images(whole.x, whole.y, [*rows, *(high.pop() for _ in range(app.each - len(rows)))]))
    return nodes, images(test.x, test.y, rng.permutation(len(test.y))[:2000])


def curve(app: str, split: str, rule: str, seed: int) -> list[float]:
    """The accuracy after each round."""
    nodes, test = dealt(APPS[app], split, seed)
    torch.manual_seed(seed)
    made, found = APPS[app](), list[float]()

    def answer(message: Message, context: Context) -> Message:
        k, t = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"])
        if k >= NODES // 2 and random.Random(f"{seed} {t} {k}").random() >= HERE:
            return away(message)
        made.load({name: array.numpy() for name, array in message.content["arrays"].items()})
        made.train(nodes[k], seed=1000 * t + k)
        return reply(message, made.weights(), {"num-examples": APPS[app].each})

    def evaluate(t: int, arrays: ArrayRecord) -> MetricRecord:
        made.load({name: array.numpy() for name, array in arrays.items()})
        found.append(made.accuracy(test))
        return MetricRecord({"accuracy": found[-1]})

    strategy = RULES[rule](fraction_evaluate=0.0)
    start = ArrayRecord({name: Array(value) for name, value in made.weights().items()})
    strategy.start(Direct(NODES, answer), start, ROUNDS, train_config=ConfigRecord(), evaluate_fn=evaluate)
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apps", nargs="+", choices=APPS, default=[*APPS])
    parser.add_argument("--splits", nargs="+", choices=("iid", "skewed"), default=["iid", "skewed"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[21, 22, 23])
    parser.add_argument("--store", type=Path, default=Path("flower_quickstarts.jsonl"))
    asked = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    lines = asked.store.read_text().splitlines() if asked.store.exists() else []
    found = {tuple(key): accuracies for key, accuracies in map(json.loads, lines)}
    for app in asked.apps:
        for split in asked.splits:
            for rule in RULES:
                for seed in asked.seeds:
                    if (key := (app, split, rule, seed)) not in found:
                        found[key] = curve(*key)
                        with asked.store.open("a") as file:
                            file.write(json.dumps([key, found[key]]) + "\n")
                runs = [np.array(found[app, split, rule, seed]) for seed in asked.seeds]
                ends = [[100 * run[t - LAST : t].mean() for run in runs] for t in MARKS]
                shown = (
                    f"at {t}: {np.mean(e):.1f} ({', '.join(f'{x:.1f}' for x in e)})"
                    for t, e in zip(MARKS, ends, strict=True)
                )
                print(f"{app:8} {split:7} {rule:18}", *shown, sep="  ", flush=True)


if __name__ == "__main__":
    main()
