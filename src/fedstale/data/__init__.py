"""Real datasets, and the rules that divide them among clients."""

from fedstale.data.datasets import DATASETS, Dataset, load
from fedstale.data.federated import Federated, federate
from fedstale.data.hugging_face import from_hf
from fedstale.data.partition import (
    IID,
    ByWriter,
    ClusteredDirichlet,
    Dirichlet,
    Majority,
    Partition,
    Shards,
    Shares,
    by_layer,
)
from fedstale.data.swap import LabelSwap, ReleasedSwap, Swap
from fedstale.data.tables import from_frame

__all__ = [
    "DATASETS", "IID", "ByWriter", "ClusteredDirichlet", "Dataset", "Dirichlet", "Federated", "LabelSwap",
    "Majority", "Partition", "ReleasedSwap", "Shards", "Shares", "Swap", "by_layer", "federate", "from_frame",
    "from_hf", "load",
]  # fmt: skip
