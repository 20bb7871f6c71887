"""Losses that come in bursts.

Gilbert, Capacity of a burst-noise channel, 1960; Elliott, Estimates of error rates for codes on
burst-noise channels, 1963 (both Bell System Technical Journal).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.channels.loss import at, each, luck, send
from fedstale.core import Array, Floats, Ids, Mask, Natural, Streams, keep_numbers, part


class Weather(NamedTuple):
    """Who has a bad time, and what was sent so far."""

    bad: Mask  # (n,) whose times are bad
    transmissions: int  # messages sent so far over the links that lose, retries included


@part
class GilbertElliott:
    """Every client has good and bad times, and an update is lost with probability `good` or `bad` in them.

    From one round to the next good times end with probability `worsen`, bad ones with `recover`: these
    last 1 / recover rounds on average and are worsen / (worsen + recover) of all, from the first round on.
    With `both_links` the parameters sent go through the same weather. Retries fall into the same round,
    so they help little when bad times lose nearly everything. Inverse weighting is right on average over
    the weather, but not within a burst, where a client stays away for several rounds.
    """

    worsen: npt.ArrayLike
    recover: npt.ArrayLike
    good: npt.ArrayLike = 0.0
    bad: npt.ArrayLike = 1.0
    both_links: bool = False
    retries: Natural = 0

    def __post_init__(self) -> None:
        for name, allowed in (("worsen", "[0"), ("recover", "(0"), ("good", "[0"), ("bad", "[0")):
            keep_numbers(self, name, f"a probability in {allowed}, 1]")

    def probs(self, n: int, d: int) -> Array:
        share, links = self._bad_share(n), 1 + self.both_links
        good, bad = ((1 - each(q, n) ** (self.retries + 1)) ** links for q in (self.good, self.bad))
        return ((1 - share) * good + share * bad).astype(np.float32)

    def share(self, n: int, d: int) -> Array:
        return np.ones(n, np.float32)

    def init(self, n: int, streams: Streams) -> Weather:
        return Weather(streams("weather").random(n) < self._bad_share(n), 0)

    def downlink(self, state: Weather, clients: Ids, streams: Streams) -> tuple[Mask, Weather]:
        n = len(state.bad)
        turn, worsen, recover = streams("weather").random(n), each(self.worsen, n), each(self.recover, n)
        state = state._replace(bad=np.where(state.bad, turn >= recover, turn < worsen))
        if not self.both_links:
            return np.ones(len(clients), np.bool_), state
        return self._through(state, clients, streams("down"))

    def uplink(self, state: Weather, clients: Ids, d: int, streams: Streams) -> tuple[Mask, Weather]:
        arrived, state = self._through(state, clients, streams("up"))
        return arrived[:, None], state

    def _through(self, state: Weather, clients: Ids, rng: np.random.Generator) -> tuple[Mask, Weather]:
        q = np.where(state.bad[clients], at(self.bad, clients), at(self.good, clients))
        arrived, sent = send(luck(rng, clients), q, self.retries)
        return arrived, state._replace(transmissions=state.transmissions + sent)

    def _bad_share(self, n: int) -> Floats:
        worsen, recover = each(self.worsen, n), each(self.recover, n)
        return worsen / (worsen + recover)
