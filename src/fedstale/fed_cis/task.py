"""One network with early exits or nested widths, of which nodes hold different shares: a client is a (node, exit).

Kaplan, Rodio, Si Salem, Xu and Neglia, Federated Learning for Cooperative Inference Systems: The Case of
Early Exit Networks, 2024 (arXiv 2405.04249); Rodio's thesis, chapter 5.
"""

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedstale.core import Array, BadInput, Floats, Ids, Local, arguments_checked, normalised, require, stream
from fedstale.data.federated import Federated
from fedstale.fed_cis.exits import Exit, exit_of, flops, gradient_variances
from fedstale.fed_cis.inference import Requests, normalised_entropy, own, serve, served_mean
from fedstale.fed_cis.networks import ExitModel, Network
from fedstale.fed_cis.tree import Tree
from fedstale.fed_cis.weights import Equal, Exits, Weighting
from fedstale.tasks.evaluation import EVALUATION_BATCH
from fedstale.tasks.flat import Flat, draw, given_buffers, layout, seeded, slots, vector
from fedstale.tasks.images import splits
from fedstale.tasks.local import few_threads
from fedstale.tasks.losses import cross_entropy
from fedstale.tasks.split import Samples, Split
from fedstale.tasks.supervised import Batch


class EarlyExitTask:
    """F(w) = Σ_(i,e) a_(i,e) F_(i,e)(w), with F_(i,e) the mean loss of exit e over the samples of node i.

    Client v is pairs[v] = (node, exit), with weight a = Λ̃_e |D_i| / |D_e|, D_e being the samples of all
    nodes that train exit e. Its gradient is zero outside the exit's stages and head. The Λ̃ are the
    weighting's, scaled so that all weights sum to one: that only scales the server's step, and leaves out
    exits that nobody trains. Test samples are what the nodes of the tree are asked about, as `requests`
    says. `ridge` is on the prefix that is trained. Samples are per node, as in Supervised. With `thresholds` T_e a
    node answers what its exit is certain of, in the place of the easiest share. Running statistics (BatchNorm)
    are those of each exit: the prefixes share parameters, and no buffers.
    """

    @arguments_checked
    def __init__(
        self, model: Callable[[], Network], train: Samples, test: Samples | None = None, *,
        tree: Tree, pairs: npt.ArrayLike, weighting: Weighting = Equal(), requests: Requests = own,
        watch_variances: bool = False, ridge: float = 0.0, device: str = "cpu",
        thresholds: npt.ArrayLike | None = None,
    ) -> None:  # fmt: skip
        self.thresholds = thresholds
        self._make, self.tree, self.ridge, self.watch_variances = model, tree, ridge, watch_variances
        ok = not isinstance(model, nn.Module)
        require(ok, "model must be a function that makes an EarlyExit(stages, heads), got a network")
        network = self.module()
        ok = isinstance(network, Network)
        require(ok, f"model must make an EarlyExit(stages, heads), got {type(network).__name__}")
        self.slots = slots(network)
        self.d = self.slots[-1].where.stop
        place = partial(exit_of, model, self.slots, ridge=ridge, device=device)
        first, E = place(1, train, test), network.exits
        limits = np.asarray(0.0 if thresholds is None else thresholds, np.float64)
        ok = limits.size in (1, E) and bool(((limits >= 0) & (limits <= 1)).all())
        require(ok, f"thresholds must be one, or one for each of {E} exits, in [0, 1], got {thresholds!r}")
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

    def module(self) -> Network:
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

    @cached_property
    def initial_buffers(self) -> Floats:
        """(b,) the buffers of all exits that training changes, those of exit 1 first."""
        return np.concatenate([exit.task.initial_buffers for exit in self.exits])

    def load_buffers(self, buffers: Floats) -> None:
        """Set the buffers that the next gradient begins with."""
        for exit, mine in zip(self.exits, self._by_exit(buffers), strict=True):
            exit.task.load_buffers(mine)

    def read_buffers(self) -> Floats:
        """(b,) the buffers as the last gradient left them."""
        return np.concatenate([exit.task.read_buffers() for exit in self.exits])

    def _by_exit(self, buffers: Floats) -> list[Floats]:
        ends = np.cumsum([len(exit.task.initial_buffers) for exit in self.exits])
        return np.split(buffers, ends[:-1])

    def layout(self) -> dict[str, list[dict[str, Any]]]:
        """Names and shapes of what the flat vectors of parameters and buffers are made of."""
        tasks = [exit.task for exit in self.exits]
        named = {f"exit {e}: {k}": t.module().get_buffer(k) for e, t in enumerate(tasks, 1) for k in t.averaged}
        return layout(self.slots, named)

    def evaluate(self, params: Array, buffers: Floats | None = None) -> dict[str, float]:
        """`accuracy` and `loss` of what is served, the accuracy of each exit if it served all, `objective`.

        With `watch_variances` also the gradient variance of each exit at these parameters.
        """
        scores = self.served_scores(params, buffers) if len(self.test.y) else {}
        if self.watch_variances:
            scores |= {f"variance_exit_{e}": float(v) for e, v in enumerate(self.variances(params), 1)}
        return {**scores, "objective": self.objective(params, buffers)}

    def served_scores(self, params: Array, buffers: Floats | None = None) -> dict[str, float]:
        """Accuracy and loss of the served requests, and the accuracy of each exit if it answered all of them."""
        answers, labels = self.answers(params, self.test, buffers), self.test.y.cpu().numpy()
        hits, losses = answers.argmax(-1) == labels, _losses(answers, self.test.y)
        served = serve(self.tree, normalised_entropy(answers), self.requests, self.thresholds)
        asked = self.requests.sum(axis=0) / self.requests.sum()  # (M,)
        each = {f"accuracy_exit_{e}": float(hit @ asked) for e, hit in enumerate(hits, 1)}
        shown = {"accuracy": served_mean(self.tree, served, hits), "loss": served_mean(self.tree, served, losses)}
        return shown | each

    def objective(self, params: Array, buffers: Floats | None = None) -> float:
        """F(w) = Σ a_(i,e) F_(i,e)(w), over all training samples."""
        losses = _losses(self.answers(params, self.train, buffers), self.train.y)
        means = np.stack([self.train.means(row) for row in losses])  # (E, nodes)
        if self.ridge:
            prefixes = [exit.narrow(params).astype(np.float64) for exit in self.exits]
            means += self.ridge / 2 * np.array([[w @ w] for w in prefixes])
        node, exit = self.pairs.T
        return float(self.weights.astype(np.float64) @ means[exit - 1, node])

    def answers(self, params: Array, split: Split, buffers: Floats | None = None) -> Array:
        """(E, M, classes) what every exit says of every sample: each passes through the network once.

        With buffers, which every exit has for itself, it passes through every prefix.
        """
        if len(self.initial_buffers):
            names = [name for exit in self.exits for name in exit.task.averaged]
            return self._separate_answers(params, given_buffers(buffers, names, self.initial_buffers), split)
        flat = self._flat
        flat.load(params)
        flat.module.eval()
        with torch.inference_mode(), few_threads(self):
            parts = [flat.module(x).cpu() for x in torch.split(split.x, EVALUATION_BATCH)]
        answers: Array = torch.cat(parts, dim=1).numpy()
        return answers

    def _separate_answers(self, params: Array, buffers: Floats, split: Split) -> Array:
        said = []
        for exit, mine in zip(self.exits, self._by_exit(buffers), strict=True):
            module = exit.task.model(exit.narrow(params), mine)
            with torch.inference_mode(), few_threads(self):
                said.append(torch.cat([module(x.cpu()) for x in torch.split(split.x, EVALUATION_BATCH)]))
        return torch.stack(said).numpy()

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
    thresholds: npt.ArrayLike | None = None,
) -> EarlyExitTask:  # fmt: skip
    """The network trained on these nodes' images, scaled to mean 0 and deviation 1 per channel."""
    network = partial(model.build, federated.x.shape[1:], federated.classes)
    return EarlyExitTask(
        network, *splits(federated), tree=tree, pairs=pairs, weighting=weighting, requests=requests,
        watch_variances=watch_variances, ridge=ridge, device=device, thresholds=thresholds,
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
