"""How much of the memory to use, learned from the updates themselves.

For a β fixed before the participants are drawn, FedStale's step is unbiased and its participation variance
is Σ a_i² (1-p_i)/p_i ‖Δ_i - β h_i‖². Its minimum is a control variate's coefficient,

    β* = Σ ω_i ⟨Δ_i, h_i⟩ / Σ ω_i ‖h_i‖²,

which those who took part estimate without bias if each counts with ω_i = a_i² (1-p_i)/p_i²: once for the
variance it causes, and once more for how seldom it is seen.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Ids, Round
from fedstale.memory import Memory

Floats = npt.NDArray[np.float64]

ALWAYS = 0.999  # a client with such a p causes no variance worth correcting
PRIOR_EVENTS = 10  # the first guess, β = 0.5, fades over so many events
PRIOR = 0.5


class Tuning(NamedTuple):
    """The running sums, and the β of the next round. An event is one client that was seen before, seen again."""

    beta: float = PRIOR
    alike: float = 0.0  # Σ ω ⟨Δ, h⟩, fading
    power: float = 0.0  # Σ ω ‖h‖², fading
    events: float = 0.0  # fading in the same way
    seen: int = 0  # events in all

    def after(self, alike: float, power: float, events: int, window: int) -> "Tuning":
        """With the events of a round; the sums fade with a memory of about `window` events."""
        if events == 0:
            return self
        keep = (1 - 1 / window) ** events
        alike, power = keep * self.alike + alike, keep * self.power + power
        count, seen = keep * self.events + events, self.seen + events
        weight = max(0.0, 1 - seen / PRIOR_EVENTS)  # of the prior
        guess = alike / power if power > 0 else PRIOR
        beta = (count * guess + weight * PRIOR) / (count + weight)
        return Tuning(min(max(beta, 0.0), 1.0), alike, power, count, seen)

    def looked(self, memory: Memory, counts: Ids, r: Round, excess: Floats, extra: Floats) -> "Tuning":
        """With what the clients of this round tell; on the way, extra += Σ_S excess_i (Δ_i - β h_i)."""
        n, alike, power, events = len(r.weights), 0.0, 0.0, 0
        for k, i in enumerate(r.clients.tolist()):
            p = float(r.probs[i])
            if p >= ALWAYS:
                continue
            h, Δ = memory.row(i), r.updates[k]
            if not r.arrived[k].all():
                h, Δ = np.where(r.arrived[k], h, 0), np.where(r.arrived[k], Δ, 0)
            extra += float(excess[k]) * (Δ - np.float32(self.beta) * h)
            if counts[i]:  # seen before: its memory is not the zero it began with
                ω = (n * float(r.weights[i])) ** 2 * (1 - p) / p**2
                alike, power = alike + ω * _dot(Δ, h), power + ω * _dot(h, h)
                events += 1
        return self.after(alike, power, events, min(8, 3 * int((r.probs < ALWAYS).sum())))


def _dot(x: Array, y: Array) -> float:
    return float(np.sum(x * y, dtype=np.float64))
