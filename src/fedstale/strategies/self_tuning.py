"""How much of the memory to use, learned from the updates themselves.

For a β fixed before the participants are drawn, FedStale's step is unbiased and its participation variance
is Σ a_i² (1-p_i)/p_i ‖Δ_i - β h_i‖². Its minimum is a control variate's coefficient,

    β* = Σ ω_i ⟨Δ_i, h_i⟩ / Σ ω_i ‖h_i‖²,

which those who took part estimate without bias if each counts with ω_i = a_i² (1-p_i)/p_i²: once for the
variance it causes, and once more for how seldom it is seen.
"""

from typing import NamedTuple

import numpy as np

from fedstale.core import Floats, Ids, Round

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

    def heard(self, r: Round, counts: Ids, alike: Floats, power: Floats) -> "Tuning":
        """With a round's ⟨Δ_i, h_i⟩ and ‖h_i‖² (m,), where the client had been heard `counts` times before."""
        p, a = r.probs[r.clients].astype(np.float64), len(r.weights) * r.weights[r.clients].astype(np.float64)
        tells = (p < ALWAYS) & (counts[r.clients] > 0)  # a first update meets the zero that its memory began with
        ω = np.where(tells, a**2 * (1 - p) / p**2, 0.0)
        window = min(8, 3 * int(np.count_nonzero(r.probs < ALWAYS)))
        return self.after(float(ω @ alike), float(ω @ power), int(np.count_nonzero(tells)), window)
