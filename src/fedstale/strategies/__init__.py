"""Server rules, one paper per file."""

from fedstale.strategies.fedavg import FedAvg
from fedstale.strategies.fedstale import FedStale
from fedstale.strategies.fedvarp import FedVARP
from fedstale.strategies.mifa import MIFA
from fedstale.strategies.unbiased import Unbiased

__all__ = ["MIFA", "FedAvg", "FedStale", "FedVARP", "Unbiased"]
