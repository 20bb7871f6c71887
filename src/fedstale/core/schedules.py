"""What changes local training from round to round and from client to client: schedules and workloads."""

import math
from typing import Annotated

import numpy as np

from fedstale.core.local import Schedule
from fedstale.core.parts import Count, NotNegativeFinite, PositiveShare, Range, Share, part, require

__all__ = ["Cosine", "InverseSteps", "StepDecay", "UniformSteps", "Warmup"]


@part
class Cosine:
    """From 1 in round 1 down to `floor` in round `rounds`, along half a cosine; `floor` after that."""

    rounds: Annotated[int, Range("at least 2")]
    floor: Share = 0.0

    def factor(self, t: int) -> float:
        share = min((t - 1) / (self.rounds - 1), 1.0)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * share)) / 2


@part
class StepDecay:
    """Times `gamma` after every `every` rounds."""

    every: Count
    gamma: PositiveShare = 0.1

    def factor(self, t: int) -> float:
        return float(self.gamma ** ((t - 1) // self.every))


@part
class Warmup:
    """From 1/rounds up to 1 in `rounds` equal steps, then by the schedule `then`, which starts at its round 1."""

    rounds: Count
    then: Schedule | None = None

    def factor(self, t: int) -> float:
        if t <= self.rounds:
            return t / self.rounds
        return self.then.factor(t - self.rounds) if self.then else 1.0


@part
class InverseSteps:
    """(offset + 1) / (offset + (t - 1) steps + k + 1) at local step k = 0, 1, … of round t: falls within a round.

    With offset γ = max{8κ, K} - 1, `steps` K and lr = 2 / (μ (γ + 1)) the rate is that of Theorem 5.3.1 of Rodio,
    Client heterogeneity in federated learning systems, thesis, 2024; see `fs.theory.exit_rate`.
    """

    offset: NotNegativeFinite
    steps: Count

    def factor(self, t: int) -> float:
        return self.step_factor(t, 0)

    def step_factor(self, t: int, k: int) -> float:
        return (self.offset + 1) / (self.offset + (t - 1) * self.steps + k + 1)


@part
class UniformSteps:
    """Each client takes from `low` to `high` local steps, drawn anew in every round."""

    low: int
    high: int

    def __post_init__(self) -> None:
        require(1 <= self.low <= self.high, f"steps must be 1 ≤ low ≤ high, got {self.low} and {self.high}")

    def steps(self, client: int, t: int, rng: np.random.Generator) -> int:
        return int(rng.integers(self.low, self.high + 1))
