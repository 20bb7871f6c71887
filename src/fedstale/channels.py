"""What gets through between the server and the clients."""

import numpy as np

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

    def downlink(self, state: None, n: int, streams: Streams) -> tuple[Mask, None]:
        return np.ones(n, np.bool_), None

    def uplink(self, state: None, clients: Ids, d: int, streams: Streams) -> tuple[Mask, None]:
        return np.ones((len(clients), 1), np.bool_), None
