"""Updates that arrive in part.

The question that ch. 4 of Rodio's thesis leaves open: what arrives is used, and each coordinate is
divided by its own arrival probability, which keeps Unbiased and FedStale unbiased.
"""

import numpy as np
import numpy.typing as npt

from fedstale.channels.loss import Spent, at, each, send
from fedstale.core import Array, Count, Floats, Ids, Mask, Natural, Streams, keep_numbers, part


@part
class Packets:
    """An update travels in packets of `size` coordinates, each lost independently with probability `loss`.

    One number or one per client. Of P packets anything arrives with probability 1 - q^P, a given
    coordinate with 1 - q; with R retries of a lost packet, q^(R+1) stands for q. The parameters sent to
    the clients always arrive. Small packets lose a little of every update, large ones all of some.
    """

    size: Count
    loss: npt.ArrayLike
    retries: Natural = 0

    def __post_init__(self) -> None:
        keep_numbers(self, "loss", "a probability in [0, 1]")

    def probs(self, n: int, d: int) -> Array:
        return (1 - self._lost(n) ** self._count(d)).astype(np.float32)

    def share(self, n: int, d: int) -> Array:
        q = self._lost(n)
        anything = 1 - q ** self._count(d)
        return np.divide(1 - q, anything, out=np.ones(n), where=anything > 0).astype(np.float32)

    def init(self, n: int, streams: Streams) -> Spent:
        return Spent(0)

    def downlink(self, state: Spent, clients: Ids, streams: Streams) -> tuple[Mask, Spent]:
        return np.ones(len(clients), np.bool_), state

    def uplink(self, state: Spent, clients: Ids, d: int, streams: Streams) -> tuple[Mask, Spent]:
        arrived, spent = np.empty((len(clients), d), np.bool_), state.transmissions
        for k, (client, q) in enumerate(zip(clients.tolist(), at(self.loss, clients), strict=True)):
            luck = streams("packets", client).standard_exponential(self._count(d))
            packets, sent = send(luck, q, self.retries)
            arrived[k], spent = np.repeat(packets, min(self.size, d))[:d], spent + sent
        return arrived, Spent(spent)

    def _count(self, d: int) -> int:
        return -(-d // self.size)

    def _lost(self, n: int) -> Floats:
        """(n,) the chance that a packet does not arrive, retries included."""
        return each(self.loss, n) ** (self.retries + 1)
