"""Server rules, one paper per file; Clipped and Extrapolated wrap any other."""

from fedstale.strategies.adafed import AdaFed
from fedstale.strategies.afa import AFACD, AFACS
from fedstale.strategies.amplified import Amplified
from fedstale.strategies.amplified_scaffold import AmplifiedScaffold
from fedstale.strategies.ca_fed import CAFed
from fedstale.strategies.clipped import Clipped
from fedstale.strategies.extrapolated import Extrapolated
from fedstale.strategies.f3ast import F3AST
from fedstale.strategies.fadas import FADAS
from fedstale.strategies.fedasync import FedAsync
from fedstale.strategies.fedavg import FedAvg
from fedstale.strategies.fedawe import FedAWE
from fedstale.strategies.fedbuff import FedBuff
from fedstale.strategies.fedexp import FedExP
from fedstale.strategies.fedlaavg import FedLaAvg
from fedstale.strategies.fednova import FedNova
from fedstale.strategies.fedpbc import FedPBC
from fedstale.strategies.fedstale import FedStale
from fedstale.strategies.fedsteer import FedSteer
from fedstale.strategies.fedvarp import FedVARP
from fedstale.strategies.focus import FOCUS
from fedstale.strategies.krum import Krum
from fedstale.strategies.mifa import MIFA
from fedstale.strategies.more_available import MoreAvailable
from fedstale.strategies.norm_bound import NormBound
from fedstale.strategies.power_of_choice import PowerOfChoice
from fedstale.strategies.private import PrivateFedAvg, PrivateFedStale
from fedstale.strategies.robust_mean import Median, TrimmedMean
from fedstale.strategies.scaffold import Scaffold
from fedstale.strategies.self_tuning import SelfTuning
from fedstale.strategies.udma import UDMA
from fedstale.strategies.unbiased import Unbiased
from fedstale.strategies.waiting import Wait

__all__ = [
    "AFACD", "AFACS", "F3AST", "FADAS", "FOCUS", "MIFA", "UDMA", "AdaFed", "Amplified", "AmplifiedScaffold",
    "CAFed", "Clipped", "Extrapolated", "FedAWE", "FedAsync", "FedAvg", "FedBuff", "FedExP", "FedLaAvg",
    "FedNova", "FedPBC", "FedStale", "FedSteer", "FedVARP", "Krum", "Median", "MoreAvailable", "NormBound",
    "PowerOfChoice", "PrivateFedAvg", "PrivateFedStale", "Scaffold", "SelfTuning", "TrimmedMean", "Unbiased",
    "Wait",
]  # fmt: skip
