"""Server rules, one paper per file."""

from fedstale.strategies.adafed import AdaFed
from fedstale.strategies.amplified import Amplified
from fedstale.strategies.ca_fed import CAFed
from fedstale.strategies.f3ast import F3AST
from fedstale.strategies.fedavg import FedAvg
from fedstale.strategies.fedstale import FedStale
from fedstale.strategies.fedvarp import FedVARP
from fedstale.strategies.mifa import MIFA
from fedstale.strategies.more_available import MoreAvailable
from fedstale.strategies.scaffold import Scaffold
from fedstale.strategies.self_tuning import SelfTuning
from fedstale.strategies.udma import UDMA
from fedstale.strategies.unbiased import Unbiased
from fedstale.strategies.waiting import Wait

__all__ = [
    "F3AST", "MIFA", "UDMA", "AdaFed", "Amplified", "CAFed", "FedAvg", "FedStale", "FedVARP", "MoreAvailable",
    "Scaffold", "SelfTuning", "Unbiased", "Wait",
]  # fmt: skip
