"""Messages that arrive or are lost as a whole.

Rodio, Client heterogeneity in federated learning systems, thesis, 2024, ch. 4.
"""

import numpy as np
import numpy.typing as npt

from fedstale.channels.link import Spent, at, each, luck, send, settle
from fedstale.core import Array, Ids, Mask, Streams, part


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
    retries: int = 0

    def __post_init__(self) -> None:
        settle(self, self.retries, "up", "down")

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
