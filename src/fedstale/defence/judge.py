"""A defence against clients that lie: every update is judged before the strategy sees it.

Some questions are asked of an update. As long as liars are a minority of the clients, however many messages they
send, they cannot turn the answers:

* Is it about as long as the others? One number per client counts, and of these the largest that liars cannot raise.
* Does it go down a loss? Where the parameters have moved by δ since a client trained before, its update has changed
  against δ if it is honest, ⟨Δ' - Δ, δ⟩ < 0, because gradients grow along the way that they point; with its sign
  flipped it has changed along δ. The client's own past is all that this needs, however much the data differ. Single
  rounds are noisy, so the cosines are summed up: a CUSUM (Page, Continuous Inspection Schemes, Biometrika 1954).
* Where the server has a few labelled samples: does some mixture of their labels explain it (`root`)?
* How far does it push? What a_i / p_i makes of it is limited to a few times a usual update; and 1 / p_i amplifies
  only clients that have shown that they go down a loss.
"""

import math
from collections.abc import Callable
from dataclasses import field
from functools import cache
from typing import NamedTuple

import numpy as np

from fedstale.core import LATER, Array, Floats, Ids, Round, part, require, stream
from fedstale.defence.root import agreement, gradients_at, gradients_of

SKETCH = 512  # numbers that are kept of an update: cosines are right within about 1 / √SKETCH
SLACK = 2  # so many more liars than their share may be among the first clients that are heard
FADING = 0.97  # a client's longest norm, with each of its updates: norms fall as training goes on
ALLOWANCE = 0.1  # a cosine that raises no alarm: losses are not convex everywhere
CHANCE = 0.9  # so many 1 / √k are none either: cosines of k numbers are about 1 / √k by chance, in small models
MOST = 10  # alarms: an honest client that was refused by mistake is accepted again after some rounds
LARGEST = 0.5  # a cosine that counts
UNCERTAIN = 0.3  # disagreement with the root samples that raises no alarm: they are few
DECISIVE = 1.0  # agreement or disagreement with them that counts
PACE = 0.5  # of the running means that an update and its parameters are compared with
HEAVY = 10.0  # times the usual weight is the most that a client can give itself
TINY, HUGE = 1e-300, 1e38


class Watch(NamedTuple):
    """What is known of each client from all its updates, those that were refused included."""

    norms: Floats  # (n,) of its last update; 0 before the first
    longest: Floats  # (n,) of all its updates, fading
    counts: Ids  # (n,) updates so far
    updates: Array  # (n, k) running mean of their sketches
    params: Array  # (n, k) the same of the parameters that they were trained from
    cosines: Floats  # (n,) the last one between the changes of the two; 0 before the second update
    doubt: Floats  # (n,) the sum of what speaks against it, from 0 to MOST alarms


class Verdict(NamedTuple):
    """What becomes of the m updates of a round."""

    scales: Array  # (m,) what they are multiplied by
    reasons: tuple[str, ...]  # (m,) why they are refused; "" if they are not


@part
class Defence:
    """Refuses updates of clients that lie, forgets what they have left in the memory, and bounds the others.

    `liars` is the largest share of the clients that may lie. An update is refused if it is more than `loud` times
    as long as the usual longest one, or less than 1 / `quiet` of the usual last one, or if the doubt about its
    client is above `alarm`; a smaller doubt shrinks it. (a_i / p_i) ‖Δ_i‖ is bounded to `influence` usual longest
    norms, and where a rule divides by p_i, to a_i usual last norms before a client has shown that it goes down a
    loss (None: no bounds). Until more clients than could lie were heard, all is refused.

    `root` are a few labelled samples at the server: a function from parameters (d,) to the gradients (labels, d) of
    the loss on the samples of each label, such as `fs.tasks.Root(Net, x, y)`, or its name, "package.module:name". A
    simulation also takes a number: the server has copies of so many training samples. An update agrees with them if
    some mixture of steps down the losses of the labels explains it better than its opposite. What disagrees raises
    the doubt, from the first update on, and what agrees lowers it; then 1 / p_i amplifies it, and an update of at
    most `loud`² usual longest norms is shortened to the usual last one, not refused.
    """

    liars: float = 0.3
    loud: float = 6.0
    quiet: float = 1000.0
    alarm: float = 0.4
    influence: float | None = 6.0
    root: Callable[[Array], Array] | int | str | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        require(0 <= self.liars < 0.5, f"liars must be a share of at least 0 and below 0.5, got {self.liars}")
        for name, value in (("loud", self.loud), ("quiet", self.quiet)):
            require(value > 1, f"{name} must be above 1, got {value}")
        require(self.alarm > 0, f"alarm must be above 0, got {self.alarm}")
        ok = self.influence is None or self.influence > 0
        require(ok, f"influence must be above 0 or None, got {self.influence}")
        ok = not isinstance(self.root, int) or self.root > 0
        require(ok, f"root must be at least 1 sample, got {self.root}")
        if isinstance(self.root, str):
            gradients_of(self.root)  # refuses what cannot be called before any work

    def init(self, n: int, d: int) -> Watch:
        """The state before round 1, for n clients and d parameters."""
        updates, params = np.zeros((2, n, min(d, SKETCH)), np.float32)
        return Watch(np.zeros(n), np.zeros(n), np.zeros(n, np.int64), updates, params, np.zeros(n), np.zeros(n))

    def judge(self, watch: Watch, r: Round, inverse: bool, descends: bool = True) -> Verdict:
        """The verdict on a round, which `watch` learns from; `inverse` says that the strategy divides by p_i.

        `descends` says that an honest update goes down the client's own loss, so that directions can be judged.
        """
        norms = np.sqrt([np.einsum("i,i", row, row, dtype=np.float64) for row in r.received()])  # (m,)
        rooted = self.root is not None and descends
        agreed = agreement(gradients_at(self.root, r.params), r.received()) if rooted else None
        self._learn(watch, r, norms, agreed)
        doubt, (last, longest) = watch.doubt[r.clients] * descends, self._usual(watch)
        scales, high = np.clip(1 - doubt / self.alarm, 0, 1), self.loud * longest
        down = (watch.cosines[r.clients] if agreed is None else -agreed) < 0
        sound = down & (doubt == 0)
        # labels that nobody else has make honest updates long
        long = sound & (high < norms) & (norms <= self.loud * high) & (agreed is not None)
        scales = np.where(long, last / np.maximum(norms, TINY), scales)
        pairs = zip(np.where(long, last, norms).tolist(), doubt.tolist(), strict=True)
        reasons = tuple(self._reason(*pair, last / self.quiet, high) for pair in pairs)
        if self.influence is not None and longest > 0:
            a = r.weights[r.clients].astype(np.float64)
            plain = a if inverse else a / max(a.sum(), TINY)
            shown = sound | (not (inverse and descends))
            most = np.where(shown, self.influence * longest, plain * last)
            reach = (r.inverse() if inverse else plain) * norms
            scales = np.minimum(scales, most / np.maximum(reach, TINY))
        return Verdict(scales.astype(np.float32), reasons)

    def _reason(self, norm: float, doubt: float, low: float, high: float) -> str:
        if high < low:
            return "it cannot be compared: no more clients were heard so far than could lie"
        if not low <= norm <= high:
            return f"its norm is out of proportion: {norm:.3g}, not between {low:.3g} and {high:.3g}"
        return "its updates go up the loss, not down" if doubt > self.alarm else ""

    def _learn(self, w: Watch, r: Round, norms: Floats, agreed: Floats | None) -> None:
        """Compare each update with the client's earlier ones, and with the root samples, and remember it."""
        at, known = r.clients, w.counts[r.clients] > 0
        change = sketch(r.received()).astype(np.float64) - w.updates[at]  # Δ' - Δ
        way = sketch(r.params[None]).astype(np.float64) - w.params[at]  # δ
        sizes = np.linalg.norm(change, axis=1) * np.linalg.norm(way, axis=1)
        known &= sizes > 0
        cosines = np.einsum("mk,mk->m", change, way) / np.where(known, sizes, 1)
        w.norms[at], w.cosines[at] = norms, np.where(known, cosines, w.cosines[at])
        w.longest[at] = np.maximum(norms, FADING * w.longest[at])
        w.counts[at] += 1
        told = np.sort(w.cosines[(w.counts > 1) & (w.norms > 0)])
        k = min((len(told) + 1) // 2, self._rank(w, len(told)))
        common = max(0.0, told[k - 1]) if k > 0 else 0.0  # where the loss is not convex, it is so for most
        least = max(ALLOWANCE, CHANCE / math.sqrt(w.updates.shape[1]))
        alarmed = w.doubt[at] > self.alarm
        step = np.where(known, np.clip(cosines, -LARGEST, LARGEST) - np.where(alarmed, 0, least + common), 0)
        if agreed is not None:
            step -= np.clip(agreed, -DECISIVE, DECISIVE) + np.where(alarmed, 0, UNCERTAIN)
        w.doubt[at] = np.clip(w.doubt[at] + step, 0, MOST * self.alarm)
        pace = np.maximum(1 / w.counts[at], PACE)[:, None]
        w.updates[at] += (pace * change).astype(np.float32)
        w.params[at] += (pace * way).astype(np.float32)

    def _usual(self, w: Watch) -> tuple[float, float]:
        """The usual last norm and the usual longest one, which is below 0 if there are too few to tell."""
        last, longest = (np.sort(norms[w.norms > 0]) for norms in (w.norms, w.longest))
        k = self._rank(w, len(last))
        if len(last) == 0:  # all updates are zero
            return 0.0, 0.0
        return (float(last[k - 1]), float(longest[k - 1])) if k > 0 else (0.0, -1.0)

    def _rank(self, w: Watch, m: int) -> int:
        """Of m sorted numbers, one for each client, the place of the largest that liars cannot raise.

        Clients that send zeros have shown themselves: there are so many fewer liars among the others.
        """
        empty = int(np.count_nonzero((w.counts > 0) & (w.norms == 0)))
        return m - max(self._lying(len(w.norms), m) - empty, 0)

    def _lying(self, n: int, m: int) -> int:
        """How many of m clients that were heard may be liars, of n that there are."""
        return min(int(self.liars * n), math.ceil(self.liars * m) + SLACK)

    def fair(self, weights: Floats) -> Floats:
        """(n,) the weights that clients tell, NaN for none, with none above HEAVY times the usual one."""
        told = np.sort(weights[np.isfinite(weights)])
        if len(told) == 0:
            return weights
        k = min((len(told) + 1) // 2, len(told) - self._lying(len(weights), len(told)))
        bounded: Floats = np.minimum(weights, HEAVY * told[max(k, 1) - 1])
        return bounded


def sketch(rows: Array) -> Array:
    """(m, k) short vectors with about the same inner products as the rows (m, d): signed sums of coordinates."""
    m, d = rows.shape
    short, signed = np.zeros((m, min(d, SKETCH))), np.zeros(-(-d // SKETCH) * SKETCH, np.float32)
    for out, row in zip(short, rows, strict=True):  # one by one: rows may be large
        if d <= SKETCH:
            out[:] = row
        else:
            np.multiply(row, _signs(d), out=signed[:d])
            out[:] = signed.reshape(-1, SKETCH).sum(axis=0, dtype=np.float64)
    return np.clip(short, -HUGE, HUGE).astype(np.float32)


@cache
def _signs(d: int) -> Array:
    """(d,) 1 or -1, the same in every process."""
    return np.asarray(stream(0, "sketch").integers(0, 2, d) * 2 - 1, np.float32)
