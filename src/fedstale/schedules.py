"""What changes local training from round to round and from client to client: schedules and workloads."""

import math

import numpy as np

from fedstale.core import Schedule, part, require

__all__ = ["Cosine", "InverseSteps", "StepDecay", "UniformSteps", "Warmup"]


@part
class Cosine:
    """From 1 in round 1 down to `floor` in round `rounds`, along half a cosine; `floor` after that."""

    rounds: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        require(self.rounds >= 2, f"rounds must be at least 2, got {self.rounds}")
        require(0 <= self.floor <= 1, f"floor must be in [0, 1], got {self.floor}")

    def factor(self, t: int) -> float:
        share = min((t - 1) / (self.rounds - 1), 1.0)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * share)) / 2


@part
class StepDecay:
    """Times `gamma` after every `every` rounds."""

    every: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        require(self.every >= 1, f"every must be at least 1, got {self.every}")
        require(0 < self.gamma <= 1, f"gamma must be in (0, 1], got {self.gamma}")

    def factor(self, t: int) -> float:
        return float(self.gamma ** ((t - 1) // self.every))


@part
class Warmup:
    """From 1/rounds up to 1 in `rounds` equal steps, then by the schedule `then`, which starts at its round 1."""

    rounds: int
    then: Schedule | None = None

    def __post_init__(self) -> None:
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}")

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

    offset: float
    steps: int

    def __post_init__(self) -> None:
        require(0 <= self.offset < math.inf, f"offset must be at least 0 and finite, got {self.offset}")
        require(self.steps >= 1, f"steps must be at least 1, got {self.steps}")

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
