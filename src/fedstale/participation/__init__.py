"""Who is available, one row of n bits per round."""

from fedstale.participation.bernoulli import Bernoulli, TwoGroups

__all__ = ["Bernoulli", "TwoGroups"]
