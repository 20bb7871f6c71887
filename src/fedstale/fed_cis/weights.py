"""How much each exit counts in training, Λ̃ (E,): the rules that the thesis compares in section 5.4.

In the objective Σ_e Λ̃_e F_e, with Λ the rates at which the exits will serve, Λ̃ = Λ is free of bias; less
weight on noisy exits makes training faster (theorem 5.3.1).
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fedstale.core import Floats, Share, keep, normalised, part, require


class Exits(NamedTuple):
    """What is known of the exits; what must be measured is measured when it is asked for."""

    rates: Floats  # (E,) Λ_e, see Tree.rates
    flops: Callable[[], Floats]  # (E,) of one answer by each exit
    variances: Callable[[], Floats]  # (E,) of a minibatch gradient of each exit, mean over its coordinates


class Weighting(Protocol):
    """A rule for how much each exit counts in training."""

    def weights(self, exits: Exits) -> Floats:
        """(E,) at least 0; only the ratios count."""
        ...


@part
class Equal:
    """Λ̃_e = 1 / E: every exit counts the same, however many requests it will serve."""

    def weights(self, exits: Exits) -> Floats:
        return normalised(None, len(exits.rates))


@part
class FlopsProportional:
    """Λ̃_e ∝ the FLOPs of an answer by exit e: good where the deepest exits serve most, bad elsewhere."""

    def weights(self, exits: Exits) -> Floats:
        return normalised(exits.flops(), len(exits.rates))


@part
class ServingRate:
    """Λ̃ = Λ: trains for what will be asked; best with enough data and rounds."""

    def weights(self, exits: Exits) -> Floats:
        return normalised(exits.rates, len(exits.rates))


@part
class Balanced:
    """Λ̃ = ½ Λ + ½ σ⁻² / Σ σ⁻²: between what will be asked and what can be learnt; σ_e² is measured.

    Robust where rounds are few or the task is hard; "Balanced Adj", which the thesis prints no formula for. `share`
    is that of the second part: 1 goes by the variances alone, its rule where the optimisation error dominates.
    """

    share: Share = 0.5

    def weights(self, exits: Exits) -> Floats:
        σ2 = exits.variances()
        require(bool((σ2 > 0).all()), f"gradient variances must be above 0 to be inverted, got {σ2}")
        return (1 - self.share) * normalised(exits.rates, len(σ2)) + self.share * normalised(1 / σ2, len(σ2))


@part
class Given:
    """Λ̃ as given, one weight per exit, such as where `fs.theory.exit_bound` is least; 0 leaves an exit out."""

    values: npt.ArrayLike

    def __post_init__(self) -> None:
        keep(self, "values", np.array(self.values, np.float64))

    def weights(self, exits: Exits) -> Floats:
        return normalised(self.values, len(exits.rates))
