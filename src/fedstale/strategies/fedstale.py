"""FedStale: fresh updates, corrected by a share β of the remembered ones.

Rodio and Neglia, FedStale: leveraging Stale Updates in Federated Learning, ECAI 2024, Algorithm 2.
β = "auto", the averaged memory and the clip with its carry go beyond the paper: see docs/auto.md.
"""

from numbers import Real
from typing import ClassVar, NamedTuple, TypeGuard

import numpy as np

from fedstale.core import Array, Floats, Ids, Round, part, require
from fedstale.memory import Coding, Float32, Memory, checked
from fedstale.memory.update import Watch
from fedstale.strategies.self_tuning import Tuning


class Stale(NamedTuple):
    memory: Memory
    counts: Ids  # (n,) updates received from each client
    tuning: Tuning
    owed: Array  # (d,) what the clip cut and is still to come; of no size without a carry

    @property
    def beta(self) -> float:
        """The β of the next round."""
        return self.tuning.beta


def _number(x: object) -> TypeGuard[float]:
    return isinstance(x, Real) and not isinstance(x, bool)


@part
class FedStale:
    """step = β Σ_i a_i h_i + Σ_S (a_i / p_i)(Δ_i - β h_i); then h_i ← Δ_i for i in S.

    Unbiased for every β. β = 0 is Unbiased, β = 1 is (unbiased) FedVARP. A large β pays off when the
    data of the clients differ, a small one when the memory is old; beta = "auto" finds out. With a
    `gain` below 1 the memory is a mean: h_i ← h_i + max(1 / times seen, gain)(Δ_i - h_i). A `clip`
    bounds what the 1/p_i add, Σ_S a_i (1/p_i - 1)(Δ_i - β h_i), to so many times the norm of the rest:
    steadier, and a little biased. A share `carry` of what it cut is added to the correction of the next
    round, and so on: less bias.
    """

    beta: float | str = 0.5
    gain: float = 1.0
    clip: float | None = None
    carry: float = 0.0
    memory: Coding = Float32()
    inverse_weighting: ClassVar[bool] = True

    def __post_init__(self) -> None:
        number = self.beta if _number(self.beta) else None
        require(number is not None or self.beta == "auto", f'beta must be a number or "auto", got {self.beta!r}')
        require(number is None or 0 <= number <= 1, f"beta must be in [0, 1], got {self.beta}")
        for name, value in (
            ("gain", self.gain),
            ("clip", 1 if self.clip is None else self.clip),
            ("carry", self.carry),
        ):
            require(_number(value), f"{name} must be a number, got {value!r}")
        require(0 < self.gain <= 1, f"gain must be in (0, 1], got {self.gain}")
        require(self.clip is None or self.clip > 0, f"clip must be above 0 or None, got {self.clip}")
        require(0 <= self.carry <= 1, f"carry must be in [0, 1], got {self.carry}")
        require(
            self.carry == 0 or self.clip is not None, f"a carry needs a clip, got carry {self.carry} and no clip"
        )
        checked(self.memory)

    def init(self, n: int, d: int) -> Stale:
        tuning = Tuning() if self.beta == "auto" else Tuning(beta=float(self.beta))
        owed = np.zeros(d if self.carry else 0, np.float32)
        return Stale(Memory.zeros(n, d, self.memory), np.zeros(n, np.int64), tuning, owed)

    def aggregate(self, state: Stale, r: Round) -> tuple[Array, Stale]:
        memory, counts, tuning, owed = state
        β, a, c = tuning.beta, r.weights[r.clients].astype(np.float64), r.inverse()  # (m,) c = a_i / p_i
        step = β * memory.weighted_sum(r.weights)  # (d,) float64: β Σ a_i h_i, also when S is empty
        gain = np.maximum(1 / (counts[r.clients] + 1), self.gain)
        if self.beta != "auto" and not self.clip:
            memory.correct(step, r, fresh=c, stale=β, gain=gain)  # step += Σ_S c_i (Δ_i - β h_i); h_i ← …
            out = step.astype(np.float32)
        else:
            seen = memory.watched(  # the same, and what the 1/p_i add apart from the rest
                step, r, fresh=a if self.clip else c, stale=β, gain=gain, excess=c - a if self.clip else None,
                owed=owed if self.carry else None,
            )  # fmt: skip
            out, owed = self._clipped(step, seen, owed)
            tuning = tuning.heard(r, counts, seen.alike, seen.power) if self.beta == "auto" else tuning
        counts[r.clients] += 1
        return out, Stale(memory, counts, tuning, owed)

    def _clipped(self, step: Floats, seen: Watch, owed: Array) -> tuple[Array, Array]:
        """The step with what the clip lets through of the extra, and what is owed to the next round."""
        out, (rest, added) = step.astype(np.float32), seen.norms
        if self.clip is None:
            return out, owed
        paid = np.float32(min(1.0, self.clip * rest / added) if added > 0 else 1.0)
        out += paid * seen.extra
        return out, np.float32(self.carry) * (1 - paid) * seen.extra if self.carry else owed
