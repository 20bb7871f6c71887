"""Clients that lie, for simulations of attacks."""

import numpy as np

from fedstale.core import Ids, Reply, part, require


@part
class Liars:
    """These clients send `factor` times their update, from round `since` on.

    -1 flips its sign, 0 sends nothing, 1e4 shouts. They know only their own data, and do not hide.
    """

    clients: tuple[int, ...]
    factor: float = -1.0
    since: int = 1

    def __post_init__(self) -> None:
        ok = len(self.clients) > 0 and min(self.clients) >= 0 and len({*self.clients}) == len(self.clients)
        require(ok, f"clients must be different numbers of clients, from 0, got {self.clients}")
        require(bool(np.isfinite(self.factor)), f"factor must be finite, got {self.factor}")
        require(self.since >= 1, f"since must be at least 1, got {self.since}")

    def sent(self, reply: Reply, clients: Ids, t: int) -> Reply:
        """The reply of these clients in round t, as it is sent."""
        lying = np.isin(clients, self.clients)
        if t < self.since or not lying.any():
            return reply
        factors = np.where(lying, np.float32(self.factor), np.float32(1))
        with np.errstate(over="ignore"):  # what is not finite is refused like any other
            return reply._replace(updates=reply.updates * factors[:, None])
