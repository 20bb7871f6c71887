"""Messages that arrive or are lost as a whole, and the link: how many attempts a message takes.

Rodio, Client heterogeneity in federated learning systems, thesis, 2024, ch. 4.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Floats, Ids, Mask, Natural, Streams, keep_numbers, part, per_client


class Spent(NamedTuple):
    """What was sent so far."""

    transmissions: int  # messages, or packets of them, sent so far: either way, retries included


def luck(rng: np.random.Generator, clients: Ids) -> Floats:
    """One draw from Exp(1) for each client, the same whoever else is among them."""
    return np.asarray(rng.standard_exponential(clients.max(initial=-1) + 1)[clients])


def send(luck: Floats, q: Floats | float, retries: int) -> tuple[Mask, int]:
    """What arrives of messages that are lost with probability q at every attempt, and the attempts made.

    The number of losses before the first success is k or more with probability q^k, and so is the whole
    part of luck / -log q: one draw says how all attempts end, however many are allowed.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # q = 0: never lost; q = 1: always
        lost = np.fmin(luck / np.abs(np.log(q)), retries + 1).astype(np.int64)
    return lost <= retries, int(np.minimum(lost, retries).sum()) + lost.size


def each(q: npt.ArrayLike, n: int) -> Floats:
    """(n,) the probability of every client."""
    return per_client(q, n, "probabilities")


def at(q: npt.ArrayLike, clients: Ids) -> Floats:
    """(m,) the probability of these clients."""
    q = np.asarray(q, np.float64)
    return q[clients] if q.ndim else np.broadcast_to(q, len(clients))


@part
class Lossless:
    """Everything arrives."""

    def probs(self, n: int, d: int) -> Array:
        return np.ones(n, np.float32)

    def share(self, n: int, d: int) -> Array:
        return np.ones(n, np.float32)

    def init(self, n: int, streams: Streams) -> None:
        return None

    def downlink(self, state: None, clients: Ids, streams: Streams) -> tuple[Mask, None]:
        return np.ones(len(clients), np.bool_), None

    def uplink(self, state: None, clients: Ids, d: int, streams: Streams) -> tuple[Mask, None]:
        return np.ones((len(clients), 1), np.bool_), None


@part
class Loss:
    """Independent losses: of an update with probability `up`, of the parameters sent with `down`.

    Each is one number or one per client. A client that the parameters do not reach does not train, so
    q_i = 1 - (1 - down)(1 - up). With R retries a link's loss q falls to q^(R+1).
    """

    up: npt.ArrayLike
    down: npt.ArrayLike = 0.0
    retries: Natural = 0

    def __post_init__(self) -> None:
        keep_numbers(self, "up", "a probability in [0, 1]")
        keep_numbers(self, "down", "a probability in [0, 1]")

    def probs(self, n: int, d: int) -> Array:
        up, down = (each(q, n) ** (self.retries + 1) for q in (self.up, self.down))
        return ((1 - up) * (1 - down)).astype(np.float32)

    def share(self, n: int, d: int) -> Array:
        return np.ones(n, np.float32)

    def init(self, n: int, streams: Streams) -> Spent:
        return Spent(0)

    def downlink(self, state: Spent, clients: Ids, streams: Streams) -> tuple[Mask, Spent]:
        arrived, sent = send(luck(streams("down"), clients), at(self.down, clients), self.retries)
        return arrived, Spent(state.transmissions + sent)

    def uplink(self, state: Spent, clients: Ids, d: int, streams: Streams) -> tuple[Mask, Spent]:
        arrived, sent = send(luck(streams("up"), clients), at(self.up, clients), self.retries)
        return arrived[:, None], Spent(state.transmissions + sent)
