"""Who is available, one row of n bits per round."""

from fedstale.participation.bernoulli import Bernoulli, TwoGroups
from fedstale.participation.trace import Trace

__all__ = ["Bernoulli", "Trace", "TwoGroups"]
