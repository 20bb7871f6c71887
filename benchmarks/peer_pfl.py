"""A round in pfl-research for every line on standard input; run by `fedstale bench --against pfl`.

Started with plain python, it starts itself again as one process per core.
"""

import os
import sys
import time
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn
from workloads import LR, WORKLOADS, plain, samples

workload = WORKLOADS[sys.argv[1]]


class Scored(nn.Module):
    """The plain model with what pfl asks of one."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.criterion = plain(workload), nn.CrossEntropyLoss()

    def loss(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
        return self.criterion(self.net(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {}


class Timed(TrainingProcessCallback):
    """Waits for a line before a round and says afterwards how long it took; the first process does."""

    def __init__(self, first: bool) -> None:
        self.first = first

    def on_train_begin(self, *, model: Any) -> Metrics:
        self.wait()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if self.first:
            print("seconds", time.perf_counter() - self.start, flush=True)
        return self.wait(), Metrics()

    def wait(self) -> bool:
        """Whether there is no further round: what the first process reads, all are told."""
        over = torch.zeros(1)
        if self.first:
            over += not sys.stdin.readline()
        if torch.distributed.is_initialized():
            torch.distributed.broadcast(over, 0)
        self.start = time.perf_counter()
        return bool(over)


def main() -> None:
    torch.set_num_threads(1)
    clients = samples(workload)
    users = [str(k) for k in range(workload.clients)]
    sampler = get_user_sampler("minimize_reuse", users)
    model = Scored()
    wrapped = PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), 1.0))
    federated = FederatedDataset(lambda user: Dataset(clients[int(user)], user_id=user), sampler)
    FederatedAveraging().run(
        NNAlgorithmParams(
            10**6, evaluation_frequency=10**7, train_cohort_size=workload.clients, val_cohort_size=None
        ),
        SimulatedBackend(federated, None),
        wrapped,
        NNTrainHyperParams(
            local_batch_size=workload.batch,
            local_num_epochs=None,
            local_num_steps=workload.steps,
            local_learning_rate=LR,
        ),
        callbacks=[Timed(int(os.environ["RANK"]) == 0)],
    )


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        cores = len(os.sched_getaffinity(0))
        again = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={cores}", *sys.argv]
        os.execv(sys.executable, [sys.executable, *again])
