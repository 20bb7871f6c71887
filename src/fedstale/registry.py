"""Every part by its name, and the papers' names for combinations of parts."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedstale import channels, estimators, memory, participation, servers, strategies
from fedstale.core import Estimator, Strategy, known
from fedstale.fed_cis.sampling import ExitSampling

STRATEGIES: Mapping[str, Any] = {
    "fedavg": strategies.FedAvg,
    "unbiased": strategies.Unbiased,
    "fedstale": strategies.FedStale,
    "fedvarp-original": strategies.FedVARP,
    "mifa": strategies.MIFA,
    "ca-fed": strategies.CAFed,
    "adafed": strategies.AdaFed,
    "more-available": strategies.MoreAvailable,
    "f3ast": strategies.F3AST,
    "udma": strategies.UDMA,
    "amplified": strategies.Amplified,
    "wait": strategies.Wait,
    "scaffold": strategies.Scaffold,
}
PARTICIPATION: Mapping[str, Any] = {
    "bernoulli": participation.Bernoulli,
    "two-groups": participation.TwoGroups,
    "markov": participation.Markov,
    "markov-classes": participation.MarkovClasses,
    "clustered-markov": participation.ClusteredMarkov,
    "cyclic": participation.Cyclic,
    "diurnal": participation.Diurnal,
    "label-tied": participation.LabelTied,
    "trace": participation.Trace,
    "events": participation.Events,
    "grid": participation.Grid,
    "sampling": participation.Sampling,
    "regularised-sampling": participation.RegularisedSampling,
    "exits": ExitSampling,
}
ESTIMATORS: Mapping[str, Any] = {
    "known": estimators.Known,
    "intervals": estimators.Intervals,
    "beta-bernoulli": estimators.BetaBernoulli,
    "transitions": estimators.Transitions,
}
CHANNELS: Mapping[str, Any] = {
    "lossless": channels.Lossless,
    "loss": channels.Loss,
    "gilbert-elliott": channels.GilbertElliott,
    "packets": channels.Packets,
}
SERVERS: Mapping[str, Any] = {
    "sgd": servers.Sgd,
    "momentum": servers.Momentum,
    "adam": servers.Adam,
    "yogi": servers.Yogi,
    "projection": servers.Projection,
}


MEMORIES: Mapping[str, Any] = {"float32": memory.Float32, "float16": memory.Float16, "int8": memory.Int8}
NESTED: Mapping[str, Any] = {**PARTICIPATION, **SERVERS, **MEMORIES}  # parts that are settings of other parts


class Recipe(NamedTuple):
    """A named algorithm: a strategy and, where the paper says so, an estimator."""

    strategy: Strategy
    estimator: Estimator | None = None
    about: str = ""  # where the strategy alone does not say it


RECIPES: Mapping[str, Recipe] = {
    "fedavg": Recipe(strategies.FedAvg()),
    "unbiased": Recipe(strategies.Unbiased()),
    "fedstale": Recipe(strategies.FedStale(0.5)),
    "auto": Recipe(
        strategies.FedStale("auto", gain=0.3, clip=1.0, carry=0.5),
        about="FedStale that tunes itself: β learned online, averaged memory, clipped correction with a carry.",
    ),
    "auto-unbiased": Recipe(
        strategies.FedStale("auto", gain=0.5), about="FedStale that tunes itself and stays unbiased: no clip."
    ),
    "fedvarp": Recipe(strategies.FedStale(1.0), about="FedVARP made unbiased: FedStale with the whole memory."),
    "fedvarp-original": Recipe(strategies.FedVARP()),
    "mifa": Recipe(strategies.MIFA()),
    "fedau": Recipe(
        strategies.Unbiased(), estimators.Intervals(), "Unbiased FedAvg that learns the p_i as it goes."
    ),
    "ca-fed": Recipe(strategies.CAFed(), estimators.Transitions()),
    "adafed": Recipe(strategies.AdaFed()),
    "more-available": Recipe(strategies.MoreAvailable()),
    "f3ast": Recipe(strategies.F3AST(clients=10)),
    "upga-pl": Recipe(strategies.Unbiased(), about="Unbiased FedAvg over lossy links."),
    "dma-pl": Recipe(
        strategies.FedAvg(), about="The mean of the models that got through: FedAvg over lossy links."
    ),
    "udma-pl": Recipe(strategies.UDMA()),
    "amplified": Recipe(strategies.Amplified(period=500, factor=10.0)),
    "wait-minibatch": Recipe(strategies.Wait(period=500)),
    "wait-full": Recipe(strategies.Wait(period=500), about="wait-minibatch with a batch of all that a client has."),
    "scaffold": Recipe(strategies.Scaffold()),
}


def recipe(name: str) -> Recipe:
    """The parts of a named algorithm: `recipe("fedau")` is Unbiased with the Intervals estimator."""
    return RECIPES[known(name, RECIPES, "recipe")]
