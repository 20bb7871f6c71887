"""Anarchic federated averaging: clients take as many local steps as they like, and an update counts per step.

Yang, Zhang, Khanduri and Liu, Anarchic Federated Learning, ICML 2022: AFA-CD for many devices, AFA-CS for a few
organisations.
"""

import numpy as np

from fedstale.core import Array, BadInput, Ids, Round, part
from fedstale.memory import Coding, Float32, Memory


def _per_step(r: Round) -> Round:
    """The round with updates Δ_i / K_i, which are -lr G_i, G_i the mean of the K_i local gradients."""
    if r.work is None:
        raise BadInput("anarchic averaging needs the local steps of each client in Round.work")
    return r._replace(updates=(r.updates / r.work.steps[:, None]).astype(np.float32))


@part
class AFACD:
    """step = mean_S(Δ_i / K_i), with K_i the local steps of client i, and blind to the weights a_i.

    With equal work it is K times shorter than FedAvg's step for equal weights: the paper's server rate η is
    lr · η_s, so give the server a rate of about K. Rare clients are under-represented, as in FedAvg.
    """

    def init(self, n: int, d: int) -> None:
        return None

    def aggregate(self, state: None, r: Round) -> tuple[Array, None]:
        return _per_step(r)._replace(weights=np.ones_like(r.weights)).average().astype(np.float32), None


@part
class AFACS:
    """h_i ← Δ_i / K_i for i in S; then step = Σ_i a_i h_i over all clients.

    With equal work it is MIFA's step divided by K: give the server a rate of K, and it is MIFA. The paper weighs
    all clients alike, as a_i = 1/n does.
    """

    memory: Coding = Float32()

    def init(self, n: int, d: int) -> Memory:
        return Memory.zeros(n, d, self.memory)

    def aggregate(self, memory: Memory, r: Round) -> tuple[Array, Memory]:
        memory.remember(_per_step(r))
        return memory.weighted_sum(r.weights).astype(np.float32), memory

    def forget(self, memory: Memory, clients: Ids) -> Memory:
        return memory.forget(clients)
