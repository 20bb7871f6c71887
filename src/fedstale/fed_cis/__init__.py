"""Fed-CIS: federated learning for nodes that answer requests together, each with its share of one network.

A pair (node, exit) is a client like any other: its loss is that of the exit on the node's data, and its
update is zero outside the part of the network that the exit uses. What is new is here: the tree and its
rates, how much each exit counts, and who answers what.

Kaplan, Rodio, Si Salem, Xu and Neglia, Federated Learning for Cooperative Inference Systems: The Case of
Early Exit Networks, 2024 (arXiv 2405.04249); Rodio's thesis, chapter 5.
"""

from typing import TYPE_CHECKING

from fedstale.core.moved import on_first_use
from fedstale.fed_cis.inference import REQUESTS, everywhere, normalised_entropy, own, serve, served_mean
from fedstale.fed_cis.sampling import ExitSampling
from fedstale.fed_cis.tree import DATA_SHARES, MIXES, SEVEN_NODES, SEVENTEEN_NODES, Flows, Tree, layered
from fedstale.fed_cis.weights import Balanced, Equal, Exits, FlopsProportional, Given, ServingRate, Weighting

if TYPE_CHECKING:
    from fedstale.fed_cis.networks import EarlyExit, ExitCNN, ExitResNet18, SlicedCNN
    from fedstale.fed_cis.task import EarlyExitTask, early_exit_task
else:  # they need torch
    NETWORKS = ("EarlyExit", "ExitCNN", "ExitResNet18", "SlicedCNN")
    __getattr__ = on_first_use(__name__, {
        **{k: f"{__name__}.task:{k}" for k in ("EarlyExitTask", "early_exit_task")},
        **{k: f"{__name__}.networks:{k}" for k in NETWORKS},
    })  # fmt: skip

__all__ = [
    "DATA_SHARES", "MIXES", "REQUESTS", "SEVENTEEN_NODES", "SEVEN_NODES", "Balanced", "EarlyExit", "EarlyExitTask",
    "Equal", "ExitCNN", "ExitResNet18", "ExitSampling", "Exits", "FlopsProportional", "Flows", "Given",
    "ServingRate", "SlicedCNN", "Tree", "Weighting", "early_exit_task", "everywhere", "layered",
    "normalised_entropy", "own", "serve", "served_mean",
]  # fmt: skip
