"""Who is available, one row of n bits per round."""

from fedstale.participation.bernoulli import Bernoulli, LabelTied, TwoGroups
from fedstale.participation.cyclic import Cyclic
from fedstale.participation.diurnal import Diurnal
from fedstale.participation.energy import Battery, Budget
from fedstale.participation.events import Events, Grid
from fedstale.participation.log import Log
from fedstale.participation.markov import ClusteredMarkov, Markov, MarkovClasses
from fedstale.participation.profiles import LabelProfile, Sine, Staircase, Stationary
from fedstale.participation.sampling import RegularisedSampling, Sampling
from fedstale.participation.separation import MinimumSeparation
from fedstale.participation.trace import Trace

__all__ = [
    "Battery", "Bernoulli", "Budget", "ClusteredMarkov", "Cyclic", "Diurnal", "Events", "Grid", "LabelProfile",
    "LabelTied", "Log", "Markov", "MarkovClasses", "MinimumSeparation", "RegularisedSampling", "Sampling",
    "Sine", "Staircase", "Stationary", "Trace", "TwoGroups",
]  # fmt: skip
