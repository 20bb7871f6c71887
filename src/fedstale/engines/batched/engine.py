"""Clients and jobs side by side as stacked matrices: small models are limited by calls, not by arithmetic."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from types import MethodType
from typing import Protocol, cast

import numpy as np
import torch

from fedstale.core import Array, BadInput, DeviceArray, DrawsByRound, Job, Local, Reply, on_host, part, require
from fedstale.core.system import runs_that_fit
from fedstale.engines.batched.chunks import Chunk, Rows, chunks
from fedstale.engines.batched.compiled import Compiled, Linear
from fedstale.engines.batched.dense import Dense
from fedstale.engines.batched.functional import Functional
from fedstale.engines.kernels import load
from fedstale.engines.serial import Serial, cut
from fedstale.tasks.local import one_thread
from fedstale.tasks.split import Split
from fedstale.tasks.supervised import Supervised

MOST_RUNS = 64  # runs in step: more gain nothing
LARGEST = 1 << 18  # weights of a matrix of an MLP that stays in the cache: the library is faster at larger ones
BYPASSED = ("batches", "gradient")  # methods of a task that this engine replaces
ADVICE = "use engine 'serial' or 'pool'"


class Kernel(Protocol):
    """How the rows of a chunk advance; one thread at a time."""

    def wide(self, size: int, batch: int) -> int:
        """The padded batch size: batches are padded to a few common sizes so that more clients can be stacked."""
        ...

    def room(self, b: int, sharers: int) -> int:
        """Draws of b samples, each for `sharers` rows, that fit the cache or the memory."""
        ...

    def run(self, chunk: Chunk, rows: Rows, training: bool) -> None:
        """Write the updates and losses of the rows, or only their losses."""
        ...


def require_supported(local: Local) -> None:
    """Refuse local training that no kernel can do."""
    uneven = local.epochs is not None and not local.drop_last
    refused = {
        f"optimizer {local.optimizer!r}": local.optimizer != "sgd", "nesterov": local.nesterov,
        "clip_norm": local.clip_norm is not None, "epochs without drop_last": uneven,
        "train": local.train is not None, "rates by local step": local.by_step,
    }  # fmt: skip
    asked = " and ".join(what for what, wanted in refused.items() if wanted)
    require(not asked, f"engine 'batched' trains by SGD in equal batches, got {asked}; {ADVICE}")


@part
class Batched:
    """All clients of all jobs at once, with the numbers of Serial up to the order of float32 sums.

    Tolerance: updates within 1e-6 of the largest parameter, and 1e-5 of it after 50 rounds, at rates
    where training is stable. Closed-form gradients for linear models and MLPs with cross entropy,
    torch.func for other modules that it can batch; compiled loops for linear models, MLPs whose matrices stay in
    the cache, CNNs (`layers.stages` says which), GRUs and LSTMs (`layers.gates`) where numba is installed, whose
    sums have another order again.
    Good for small models, many clients and many runs; other convolutions are faster in a pool.
    """

    task: Supervised
    local: Local

    def __post_init__(self) -> None:
        task = self.task
        kind = type(task).__name__
        require(isinstance(task, Supervised), f"engine 'batched' needs a torch model, got {kind}; {ADVICE}")
        own = [name for name in BYPASSED if getattr(task, name) != MethodType(vars(Supervised)[name], task)]
        require(not own, f"engine 'batched' would ignore what {kind} does in {' and '.join(own)}; {ADVICE}")
        by_round = isinstance(task, DrawsByRound)
        require(not by_round, f"engine 'batched' would ignore what {kind} does in round_batches; {ADVICE}")
        require(isinstance(task.train, Split), f"engine 'batched' needs samples in memory, got datasets; {ADVICE}")
        require(task.transform is None, f"engine 'batched' cannot apply a transform; {ADVICE}")
        require_supported(self.local)
        require(not task.keeps_own, f"engine 'batched' cannot train parts of a client's own; {ADVICE}")
        told = ", ".join(task.averaged[:2])
        require(not task.averaged, f"engine 'batched' cannot keep buffers that training changes ({told}); {ADVICE}")
        kind = task.precision
        require(kind == "float32", f"engine 'batched' computes in float32, got precision {kind!r}; {ADVICE}")
        require(not task.stochastic, f"engine 'batched' cannot repeat what a model draws (dropout); {ADVICE}")
        self._try()

    @property
    def width(self) -> int:
        """Runs that may advance in step."""
        return runs_that_fit(self.task, MOST_RUNS)

    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        replies: dict[int, Reply] = {}
        for fast in (False, True):  # momentum changes how numbers are rounded: jobs with and without do not mix
            alike = {k: job for k, job in enumerate(jobs) if (job.local.momentum > 0) == fast}
            if alike:
                replies |= zip(alike, self._run(list(alike.values()), training=True), strict=True)
        return [replies[k] for k in range(len(jobs))]

    def losses(self, job: Job) -> Array:
        return self._run([job], training=False)[0].losses

    def _run(self, jobs: Sequence[Job], training: bool) -> list[Reply]:
        """Each chunk is drawn and computed by one thread.

        So the numbers do not depend on how many there are, and no thread waits for another one within a
        product, which costs dearly where cores are shared.
        """
        for local in {id(job.local): job.local for job in jobs}.values():
            require_supported(local)
        rows, kernel = Rows.of(jobs, self.task), self._kernel
        work = chunks(jobs, self.task.train.offsets, kernel.room, kernel.wide)
        with one_thread() as threads:
            if threads == 1 or self.task.device.type != "cpu":
                for chunk in work:
                    kernel.run(chunk, rows, training)
            else:
                if threads not in self._pools:
                    self._pools[threads] = ThreadPoolExecutor(threads, "batched", torch.set_num_threads, (1,))
                pool = self._pools[threads]
                for done in [pool.submit(self._compute, chunk, rows, training) for chunk in work]:
                    done.result()
        stay = self.task.aggregates_at is not None
        updates = cast(Array, DeviceArray(rows.updates)) if stay else rows.updates.cpu().numpy()
        return cut(self.task, jobs, updates, rows.losses.cpu().numpy())

    def _compute(self, chunk: Chunk, rows: Rows, training: bool) -> None:
        try:
            kernel = self._idle.pop()
        except IndexError:
            kernel = self._make()
        kernel.run(chunk, rows, training)
        self._idle.append(kernel)

    @cached_property
    def _pools(self) -> dict[int, ThreadPoolExecutor]:
        return {}

    def __getstate__(self) -> dict[str, object]:
        return {"task": self.task, "local": self.local}  # threads and buffers are made anew where needed

    @cached_property
    def _kernel(self) -> Kernel:
        return self._make()

    @cached_property
    def _idle(self) -> list[Kernel]:
        """Kernels that no thread uses at the moment; they keep their buffers from round to round."""
        return []

    def _make(self) -> Kernel:
        sizes = self.task.dense
        if self.task.device.type == "cpu":
            if sizes and len(sizes) == 2 and load("linear"):
                return Linear(self.task)
            if sizes and max(i * o for i, o in pairwise(sizes)) <= LARGEST and load("dense"):
                return Compiled(self.task)
            if (self.task.stages and load("convolutional")) or (self.task.gates and load("recurrent")):
                return Compiled(self.task)
        return Dense(self.task, sizes) if sizes else Functional(self.task)

    def _try(self) -> None:
        """One step of one client, compared with Serial."""
        job = Job(
            self.task.init(0), np.zeros(1, np.int64), 0, 1, Local(0.1, steps=1, batch=2)
        )  # at a tiny rate rounding would show
        try:
            got = self.train([job])[0]
        except Exception as error:  # whatever torch.func says of a module that it cannot batch
            first = str(error).splitlines()[0]
            raise BadInput(f"engine 'batched' cannot batch this model: {first}; {ADVICE}") from error
        due = Serial(self.task, self.local).train([job])[0]
        made, meant = on_host(got.updates), on_host(due.updates)
        near = np.allclose(made, meant, rtol=1e-3, atol=1e-3 * float(np.abs(meant).max()))
        require(near, f"engine 'batched' gets other gradients for this model than 'serial'; {ADVICE}")
