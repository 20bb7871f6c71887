"""The results of the papers as functions, a module for each: bounds, limits of learning rates, and measures."""

from fedstale.core import normalised as normalised
from fedstale.theory import amplified, amplify, bias, ca_fed, exits, lossy, markov, measured, recordings, stale
from fedstale.theory.amplified import *  # noqa: F403
from fedstale.theory.amplify import *  # noqa: F403
from fedstale.theory.bias import *  # noqa: F403
from fedstale.theory.ca_fed import *  # noqa: F403
from fedstale.theory.exits import *  # noqa: F403
from fedstale.theory.lossy import *  # noqa: F403
from fedstale.theory.markov import *  # noqa: F403
from fedstale.theory.measured import *  # noqa: F403
from fedstale.theory.recordings import *  # noqa: F403
from fedstale.theory.stale import *  # noqa: F403

__all__ = [
    "normalised", *amplified.__all__, *amplify.__all__, *bias.__all__, *ca_fed.__all__, *exits.__all__,
    *lossy.__all__, *markov.__all__, *measured.__all__, *recordings.__all__, *stale.__all__,
]  # fmt: skip
