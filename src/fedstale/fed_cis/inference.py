"""Cooperative inference: every node answers its easiest requests and passes the others on.

Rodio's thesis, sections 5.3.1 and 5.4.2, and Figure 5.1 for thresholds. A test sample stands for requests at some
rate, so that a node can serve exactly its share; the sample on the edge is answered in part here and in part
above.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from fedstale.core import Floats, Ids, arguments_checked, require
from fedstale.fed_cis.tree import Tree

# tree, test samples of each node (n,) -> rate of sample m at node i (n, M)
Requests = Callable[[Tree, Ids], Floats]


def own(tree: Tree, sizes: Ids) -> Floats:
    """A node is asked about its own test samples, each at the rate λ_i^l / their number."""
    arrivals = np.asarray(tree.arrivals)
    none = np.flatnonzero((arrivals > 0) & (sizes == 0))[:5].tolist()
    require(not none, f"nodes that receive requests must have test samples, got none of nodes {none}")
    rates = np.zeros((tree.n, sizes.sum()))
    holder = np.repeat(np.arange(tree.n), sizes)
    rates[holder, np.arange(len(holder))] = (arrivals / np.maximum(sizes, 1))[holder]
    return rates


def everywhere(tree: Tree, sizes: Ids) -> Floats:
    """A node is asked about the test samples of all nodes: less noise, for nodes whose data are alike."""
    total = int(sizes.sum())
    require(total > 0, "requests must be about test samples, got none")
    return np.repeat(np.asarray(tree.arrivals)[:, None] / total, total, axis=1)


REQUESTS: Mapping[str, Requests] = {"own": own, "everywhere": everywhere}


@arguments_checked
def normalised_entropy(logits: npt.ArrayLike) -> Floats:
    """Of the predicted class probabilities, over the last axis: 0 is certain, 1 knows nothing."""
    z = np.asarray(logits, np.float64)
    z = z - z.max(axis=-1, keepdims=True)
    p = np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)
    logs = np.log(p, out=np.zeros_like(p), where=p > 0)
    entropy: Floats = -(p * logs).sum(axis=-1) / np.log(max(z.shape[-1], 2))
    return entropy


@arguments_checked
def serve(
    tree: Tree, difficulty: npt.ArrayLike, requests: npt.ArrayLike, thresholds: npt.ArrayLike | None = None
) -> Floats:
    """(n, M) the rate at which node i answers sample m: the easiest of what reaches it, up to λ_i^s.

    `difficulty` is (E, M), as each exit sees it; `requests` is (n, M), each row with the sum λ_i^l. With
    `thresholds` T_e, one or one per exit, a node answers what its exit e sees as easier than T_e instead, whatever
    its rates, and passes on the rest.
    """
    hard, waiting = np.asarray(difficulty, np.float64), np.array(requests, np.float64)
    arrivals, exits, links = np.asarray(tree.arrivals), np.asarray(tree.exits), tree.links
    ok = hard.ndim == 2 and len(hard) >= exits.max() and waiting.shape == (tree.n, hard.shape[1])
    allowed = f"difficulty must be exits × samples and requests {tree.n} nodes × samples"
    require(ok, f"{allowed}, got shapes {hard.shape} and {waiting.shape}")
    limits = None if thresholds is None else np.broadcast_to(np.asarray(thresholds, np.float64), len(hard))
    require(limits is None or not np.isnan(limits).any(), f"thresholds must be numbers, got {limits}")
    require(np.allclose(waiting.sum(axis=1), arrivals), f"requests must add up to the arrivals {arrivals.tolist()}")
    served, rates = np.zeros_like(waiting), tree.flows().served
    for i in tree.order:
        above, e = np.flatnonzero(links[i]), exits[i] - 1
        if len(above) == 0:
            served[i] = waiting[i]
        elif limits is not None:
            served[i] = np.where(hard[e] < limits[e], waiting[i], 0)
        else:
            easiest = np.argsort(hard[e], kind="stable")
            rate = waiting[i, easiest]
            before = np.cumsum(rate) - rate
            served[i, easiest] = np.clip(rates[i] - before, 0, rate)
        for j in above:
            waiting[j] += links[i, j] * (waiting[i] - served[i])
    return served


@arguments_checked
def served_mean(tree: Tree, served: npt.ArrayLike, values: npt.ArrayLike) -> float:
    """The mean over all answers of `values` (E, M), each as given by the exit that answers."""
    answers = np.asarray(values, np.float64)[np.asarray(tree.exits) - 1]  # (n, M)
    rates = np.asarray(served, np.float64)
    return float((rates * answers).sum() / rates.sum())
