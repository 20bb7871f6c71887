"""One network with early exits, trained by nodes that hold different shares of it: a client is a (node, exit).

Kaplan, Rodio, Si Salem, Xu and Neglia, Federated Learning for Cooperative Inference Systems: The Case of
Early Exit Networks, 2024 (arXiv 2405.04249); Rodio's thesis, chapter 5.
"""

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedstale.core import Array, BadInput, Floats, Ids, Local, normalised, require
from fedstale.data.federated import Federated
from fedstale.fed_cis.exits import Exit, exit_of, flops, gradient_variances
from fedstale.fed_cis.inference import Requests, normalised_entropy, own, serve, served_mean
from fedstale.fed_cis.networks import EarlyExit, ExitModel
from fedstale.fed_cis.tree import Tree
from fedstale.fed_cis.weights import Equal, Exits, Weighting
from fedstale.rng import stream
from fedstale.tasks.evaluation import EVALUATION_BATCH
from fedstale.tasks.flat import Flat, draw, layout, seeded, slots, vector
from fedstale.tasks.images import splits
from fedstale.tasks.local import few_threads
from fedstale.tasks.losses import cross_entropy
from fedstale.tasks.samples import Samples
from fedstale.tasks.split import Split
from fedstale.tasks.supervised import Batch


class EarlyExitTask:
    """F(w) = Σ_(i,e) a_(i,e) F_(i,e)(w), with F_(i,e) the mean loss of exit e over the samples of node i.

    Client v is pairs[v] = (node, exit), with weight a = Λ̃_e |D_i| / |D_e|, D_e being the samples of all
    nodes that train exit e. Its gradient is zero outside the exit's stages and head. The Λ̃ are the
    weighting's, scaled so that all weights sum to one: that only scales the server's step, and leaves out
    exits that nobody trains. Test samples are what the nodes of the tree are asked about, as `requests`
    says. `ridge` is on the prefix that is trained. Samples are per node, as in Supervised.
    """

    def __init__(
        self, model: Callable[[], EarlyExit], train: Samples, test: Samples | None = None, *,
        tree: Tree, pairs: npt.ArrayLike, weighting: Weighting = Equal(), requests: Requests = own,
        watch_variances: bool = False, ridge: float = 0.0, device: str = "cpu",
    ) -> None:  # fmt: skip
        self._make, self.tree, self.ridge, self.watch_variances = model, tree, ridge, watch_variances
        network = self.module()
        self.slots = slots(network)
        self.d = self.slots[-1].where.stop
        place = partial(exit_of, model, self.slots, ridge=ridge, device=device)
        first, E = place(1, train, test), len(network.heads)
        self.train, self.test = (Split(s.x, s.y, s.offsets) for s in (first.task.train, first.task.test))
        self.device = first.task.device
        nodes = first.task.n
        require(tree.n == nodes, f"the tree must have the {nodes} nodes of the data, got {tree.n}")
        self.exits: tuple[Exit, ...] = (first, *(place(e, self.train, self.test) for e in range(2, E + 1)))
        self.pairs = _checked(pairs, tree)
        self.n, self.samples = len(self.pairs), self.train.sizes[np.asarray(self.pairs)[:, 0]]  # of the pair's node
        self.requests = requests(tree, self.test.sizes) if len(self.test.y) else np.zeros((nodes, 0))
        self.exit_weights = weighting.weights(Exits(tree.rates(E), self.flops, self.variances))  # Λ̃ (E,)
        a = _pair_weights(self.pairs, self.train.sizes, self.exit_weights)
        self.weights = normalised(a, self.n).astype(np.float32)

    def module(self) -> EarlyExit:
        """A fresh copy of the whole network, with the constants that all runs share."""
        with seeded(draw(stream(0, "constants"))):
            return self._make().train()

    def init(self, seed: int) -> Array:
        with seeded(draw(stream(seed, "init"))):
            return vector(self._make())

    def batches(self, client: int, local: Local, rng: np.random.Generator) -> Iterator[Batch]:
        node, exit = self._pair(client)
        return exit.task.batches(node, local, rng)

    def gradient(self, params: Array, client: int, batch: Batch) -> tuple[float, Array]:
        node, exit = self._pair(client)
        loss, gradient = exit.task.gradient(exit.narrow(params), node, batch)
        return loss, exit.widen(gradient, self.d)

    def layout(self) -> dict[str, list[dict[str, Any]]]:
        """Names and shapes of what the flat vector of parameters is made of."""
        return layout(self.slots, {})

    def evaluate(self, params: Array) -> dict[str, float]:
        """`accuracy` and `loss` of what is served, the accuracy of each exit if it served all, `objective`.

        With `watch_variances` also the gradient variance of each exit at these parameters.
        """
        scores = self.served_scores(params) if len(self.test.y) else {}
        if self.watch_variances:
            scores |= {f"variance_exit_{e}": float(v) for e, v in enumerate(self.variances(params), 1)}
        return {**scores, "objective": self.objective(params)}

    def served_scores(self, params: Array) -> dict[str, float]:
        """Accuracy and loss of the served requests, and the accuracy of each exit if it answered all of them."""
        answers, labels = self.answers(params, self.test), self.test.y.cpu().numpy()
        hits, losses = answers.argmax(-1) == labels, _losses(answers, self.test.y)
        served = serve(self.tree, normalised_entropy(answers), self.requests)
        asked = self.requests.sum(axis=0) / self.requests.sum()  # (M,)
        each = {f"accuracy_exit_{e}": float(hit @ asked) for e, hit in enumerate(hits, 1)}
        shown = {"accuracy": served_mean(self.tree, served, hits), "loss": served_mean(self.tree, served, losses)}
        return shown | each

    def objective(self, params: Array) -> float:
        """F(w) = Σ a_(i,e) F_(i,e)(w), over all training samples."""
        losses = _losses(self.answers(params, self.train), self.train.y)
        means = np.stack([self.train.means(row) for row in losses])  # (E, nodes)
        if self.ridge:
            prefixes = [exit.narrow(params).astype(np.float64) for exit in self.exits]
            means += self.ridge / 2 * np.array([[w @ w] for w in prefixes])
        node, exit = self.pairs.T
        return float(self.weights.astype(np.float64) @ means[exit - 1, node])

    def answers(self, params: Array, split: Split) -> Array:
        """(E, M, classes) what every exit says of every sample: each passes through the network once."""
        flat = self._flat
        flat.load(params)
        flat.module.eval()
        with torch.inference_mode(), few_threads(self):
            parts = [flat.module(x).cpu() for x in torch.split(split.x, EVALUATION_BATCH)]
        answers: Array = torch.cat(parts, dim=1).numpy()
        return answers

    def flops(self) -> Floats:
        """(E,) operations of one answer by each exit."""
        return flops(self.exits)

    def variances(
        self, params: Array | None = None, *, batch: int = 16, batches: int = 64, seed: int = 0
    ) -> Floats:
        """(E,) of minibatch gradients, at these parameters or where a run with this seed starts."""
        w = self.init(seed) if params is None else params
        return gradient_variances(self.exits, w, batch=batch, batches=batches, seed=seed)

    def _pair(self, client: int) -> tuple[int, Exit]:
        node, exit = map(int, self.pairs[client])
        return node, self.exits[exit - 1]

    @cached_property
    def _flat(self) -> Flat:
        return Flat(self.module(), self.slots, self.device)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_flat"}  # made anew where needed


def early_exit_task(
    federated: Federated, model: ExitModel, *,
    tree: Tree, pairs: npt.ArrayLike, weighting: Weighting = Equal(), requests: Requests = own,
    watch_variances: bool = False, ridge: float = 0.0, device: str = "cpu",
) -> EarlyExitTask:  # fmt: skip
    """The network trained on these nodes' images, scaled to mean 0 and deviation 1 per channel."""
    network = partial(model.build, federated.x.shape[1:], federated.classes)
    return EarlyExitTask(
        network, *splits(federated), tree=tree, pairs=pairs, weighting=weighting, requests=requests,
        watch_variances=watch_variances, ridge=ridge, device=device,
    )  # fmt: skip


def _checked(pairs: npt.ArrayLike, tree: Tree) -> Ids:
    ids = np.array(pairs)
    ok = ids.ndim == 2 and ids.shape[1] == 2 and len(ids) > 0 and ids.dtype.kind in "iu"
    require(ok, f"pairs must be (node, exit) numbers, (clients, 2), got shape {ids.shape}")
    node, exit = ids.T
    ok = bool(((node >= 0) & (node < tree.n)).all())
    require(ok, f"nodes must be from 0 to {tree.n - 1}, got {node.tolist()}")
    for v in np.flatnonzero((exit < 1) | (exit > np.asarray(tree.exits)[node])):
        raise BadInput(f"a node trains exits from 1 to its own in the tree, got exit {exit[v]} for node {node[v]}")
    once = len(np.unique(ids, axis=0)) == len(ids)
    require(once, "every pair of node and exit must be there once, got one twice")
    return ids.astype(np.int64)


def _pair_weights(pairs: Ids, sizes: Ids, exit_weights: Floats) -> Floats:
    """Λ̃_e |D_i| / |D_e| of every pair (i, e)."""
    node, exit = pairs.T
    held = sizes[node].astype(np.float64)  # |D_i|
    together = np.bincount(exit - 1, held, len(exit_weights))  # |D_e|
    weights: Floats = exit_weights[exit - 1] * held / together[exit - 1]
    return weights


def _losses(answers: Array, labels: Tensor) -> Floats:
    """(E, M)"""
    y = labels.cpu()
    return np.stack([cross_entropy(torch.from_numpy(row), y).double().numpy() for row in answers])
