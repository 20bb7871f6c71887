"""Every part by its name, and the papers' names for combinations of parts."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedstale.channels import Lossless
from fedstale.core import Estimator, Strategy, known
from fedstale.estimators import Intervals, Known
from fedstale.participation import Bernoulli, Trace, TwoGroups
from fedstale.servers import Adam, Momentum, Sgd
from fedstale.strategies import MIFA, FedAvg, FedStale, FedVARP, Unbiased

STRATEGIES: Mapping[str, Any] = {
    "fedavg": FedAvg,
    "unbiased": Unbiased,
    "fedstale": FedStale,
    "fedvarp-original": FedVARP,
    "mifa": MIFA,
}
PARTICIPATION: Mapping[str, Any] = {"bernoulli": Bernoulli, "two-groups": TwoGroups, "trace": Trace}
ESTIMATORS: Mapping[str, Any] = {"known": Known, "intervals": Intervals}
CHANNELS: Mapping[str, Any] = {"lossless": Lossless}
SERVERS: Mapping[str, Any] = {"sgd": Sgd, "momentum": Momentum, "adam": Adam}


class Recipe(NamedTuple):
    """A named algorithm: a strategy and, where the paper says so, an estimator."""

    strategy: Strategy
    estimator: Estimator | None = None


RECIPES: Mapping[str, Recipe] = {
    "fedavg": Recipe(FedAvg()),
    "unbiased": Recipe(Unbiased()),
    "fedstale": Recipe(FedStale(0.5)),
    "fedvarp": Recipe(FedStale(1.0)),
    "fedvarp-original": Recipe(FedVARP()),
    "mifa": Recipe(MIFA()),
    "fedau": Recipe(Unbiased(), Intervals()),
}


def recipe(name: str) -> Recipe:
    """The parts of a named algorithm: `recipe("fedau")` is Unbiased with the Intervals estimator."""
    return RECIPES[known(name, RECIPES, "recipe")]
