"""Quadratics with a known optimum, without torch: claims about an algorithm can be checked exactly.

Beside the task is the engine that trains all its clients at once; `engines.make` takes it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Count, Engine, Floats, Ids, Job, Local, NotNegative, Reply, Work
from fedstale.core.parts import arguments_checked, normalised, part, require, shown
from fedstale.core.rng import stream


class Quadratic:
    """F_i(w) = ½ (w - c_i)ᵀ A_i (w - c_i), with Gaussian noise of deviation `noise` on every gradient.

    `centers` is (n, d); `curvature` is the A_i as (n, d) diagonals or (n, d, d) matrices, identity if
    left out; `start` is where runs begin, zero if left out.
    """

    @arguments_checked
    def __init__(
        self,
        centers: npt.ArrayLike,
        curvature: npt.ArrayLike | None = None,
        *,
        weights: npt.ArrayLike | None = None,
        noise: NotNegative = 0.0,
        start: npt.ArrayLike | None = None,
    ) -> None:
        self.centers = np.array(centers, np.float64)
        require(self.centers.ndim == 2, f"centers must be (n, d), got shape {self.centers.shape}")
        self.n, self.d = self.centers.shape
        A = np.ones((self.n, self.d)) if curvature is None else np.array(curvature, np.float64)
        allowed = [(self.n, self.d), (self.n, self.d, self.d)]
        require(A.shape in allowed, f"curvature must have shape {allowed[0]} or {allowed[1]}, got {A.shape}")
        ok = A.ndim == 2 or np.allclose(A, A.transpose(0, 2, 1))
        require(ok, "curvature must be symmetric: A (w - c) is the gradient of no loss otherwise")
        self.curvature = A
        self.noise = noise
        self.weights = normalised(weights, self.n).astype(np.float32)
        self._start = np.zeros(self.d) if start is None else np.array(start, np.float64)
        require(self._start.shape == (self.d,), f"start must be ({self.d},), got {self._start.shape}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n={self.n}, d={self.d})"

    def init(self, seed: int) -> Array:
        return self._start.astype(np.float32)

    def batches(self, client: int, local: Local, rng: np.random.Generator) -> Iterator[Floats]:
        """The noise of each step."""
        require(local.steps is not None, "a quadratic has no samples to count epochs by: give steps instead")
        for _ in range(local.steps or 0):
            yield np.multiply(self.noise, rng.standard_normal(self.d))

    def gradient(self, params: Array, client: int, batch: Floats) -> tuple[float, Array]:
        gap = params - self.centers[client]
        pull = self._pull(client, gap)
        return 0.5 * float(gap @ pull), (pull + batch).astype(np.float32)

    def evaluate(self, params: Array) -> Mapping[str, float]:
        """The objective and the distance to the optimum, and the parameters if there are two."""
        place = {f"w{k}": float(x) for k, x in enumerate(params, 1)} if self.d == 2 else {}  # a path to draw
        far = float(np.linalg.norm(params - self._best))
        return {"objective": self.objective(params), "distance": far, **place}

    def objective(self, params: npt.ArrayLike) -> float:
        """F(w) = Σ a_i F_i(w)."""
        gaps = np.asarray(params, np.float64) - self.centers
        return float(self.weights.astype(np.float64) @ (0.5 * np.vecdot(gaps, self._pulls(gaps))))

    @cached_property
    def _best(self) -> Floats:
        return self.optimum()

    @property
    def optima(self) -> Floats:
        """(n,) F_i*, the least loss of each client alone: 0."""
        return np.zeros(self.n)

    def optimum(self, weights: npt.ArrayLike | None = None) -> Floats:
        """The minimiser of Σ a_i F_i, for these or other weights: (Σ a_i A_i)⁻¹ Σ a_i A_i c_i."""
        a = self.weights.astype(np.float64) if weights is None else np.asarray(weights, np.float64)
        pulled = self._pulls(self.centers)
        total = np.tensordot(a, self.curvature, axes=1)
        best = a @ pulled / total if total.ndim == 1 else np.linalg.solve(total, a @ pulled)
        return np.asarray(best, np.float64)

    def _pulls(self, gaps: Floats) -> Floats:
        """(n, d) A_i g_i of all clients, with the bits of `_pull`."""
        if self.curvature.ndim == 2:
            return self.curvature * gaps
        return np.stack([A @ g for A, g in zip(self.curvature, gaps, strict=True)])

    def _pull(self, client: int, gap: Floats) -> Floats:
        A = self.curvature[client]
        pull: Floats = A * gap if A.ndim == 1 else A @ gap
        return pull

    @classmethod
    @arguments_checked
    def random(
        cls, n: Count, d: Count, *, seed: int = 0, spread: float = 1.0, noise: NotNegative = 0.0
    ) -> "Quadratic":
        """n different quadratics around the origin, `spread` apart."""
        require(isinstance(seed, int | np.integer), f"seed must be a whole number, got {shown(seed)}")
        rng = stream(seed, "quadratic")
        return cls(spread * rng.standard_normal((n, d)), rng.uniform(0.5, 2.0, (n, d)), noise=noise)


@part
class BatchedQuadratic:
    """SGD of all rows (a client of a job) side by side; good for many clients or many runs.

    Updates are those of Serial bit for bit where curvatures are diagonal; otherwise, and the losses,
    within 1e-6 of the largest number of a reply. Jobs that are not plain SGD with a number of steps go to `rest`.
    """

    task: Quadratic
    local: Local
    rest: Engine
    width: ClassVar[int] = 64

    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        """The replies to all jobs, in their order."""
        replies: dict[int, Reply] = {}
        counts = [(job.local.steps or 0) if job.local.plain else 0 for job in jobs]
        for steps in sorted({*counts}):
            alike = {k: job for k, job in enumerate(jobs) if counts[k] == steps}
            some = list(alike.values())
            done = self._train(some, steps) if steps else self.rest.train(some)
            replies |= zip(alike, done, strict=True)
        return [replies[k] for k in range(len(jobs))]

    def losses(self, job: Job) -> Array:
        gap = job.params - self.task.centers[job.clients]
        return _half(gap, self._pull(job.clients, gap))

    @np.errstate(over="ignore", invalid="ignore")  # a run that diverges ends with a sentence, without warnings
    def _train(self, jobs: Sequence[Job], steps: int) -> list[Reply]:
        counts = [len(job.clients) for job in jobs]

        def each(values: Sequence[float]) -> Array:
            return np.repeat(np.array(values, np.float32), counts)[:, None]

        clients = np.concatenate([job.clients for job in jobs])
        sent = np.repeat(np.stack([job.params for job in jobs]), counts, axis=0)  # (R, d)
        rates = [job.local.rate(job.t) for job in jobs]
        rate, prox = each(rates), each([job.local.prox for job in jobs])
        drift = np.concatenate([_drift(job, self.task.d) for job in jobs])
        w, centers, losses = sent.copy(), self.task.centers[clients], np.empty(0, np.float32)
        for step, noise in enumerate(self._noise(jobs, steps)):
            gap = w - centers
            pull = self._pull(clients, gap)
            losses = losses if step else _half(gap, pull)
            gradient = (pull + noise).astype(np.float32) + prox * (w - sent) + drift
            w -= rate * gradient
        samples, sums = [steps * job.local.batch for job in jobs], [steps * r for r in rates]
        work = Work(np.full(len(clients), steps), np.repeat(samples, counts), np.repeat(sums, counts))
        updates, ends = w - sent, pairwise(accumulate(counts, initial=0))
        return [Reply(updates[a:b], losses[a:b], work.of(slice(a, b))) for a, b in ends]

    def _noise(self, jobs: Sequence[Job], steps: int) -> Floats:
        """(steps, R, d); jobs of one seed share it."""
        d, drawn = self.task.d, {}
        rows = [(job.seed, job.t, client) for job in jobs for client in job.clients.tolist()]
        noise = np.zeros((steps, len(rows), d if self.task.noise else 1))
        for k, name in enumerate(rows if self.task.noise else []):
            seed, t, client = name
            if name not in drawn:
                drawn[name] = stream(seed, "local", t, client).standard_normal((steps, d))
            np.multiply(self.task.noise, drawn[name], out=noise[:, k])
        return noise

    def _pull(self, clients: Ids, gap: Floats) -> Floats:
        A = self.task.curvature[clients]
        pull: Floats = A * gap if A.ndim == 2 else (A @ gap[:, :, None])[:, :, 0]
        return pull


def _half(gap: Floats, pull: Floats) -> Array:
    return np.asarray(0.5 * (gap * pull).sum(axis=1), np.float32)


def _drift(job: Job, d: int) -> Array:
    return np.zeros((len(job.clients), d), np.float32) if job.drift is None else job.drift
