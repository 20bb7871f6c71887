"""What is measured of a run beside its metrics: realised weights, and what its user should know.

`Tracer` runs a rule a second time on updates that are one-hot, the k-th client's being e_k: its step then *is* the
weight of every client, fresh and remembered together, whatever the rule.

`Concerns` looks at a few rounds (LOOKS). In them the step is compared with FedAvg's, the losses of some clients
with those after their training, and given p_i that the rule divides by with how often clients were heard. Its
sentences, which commands print, depend on the rounds alone, so that a resumed run has the same ones.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedstale.core import Engine, Hooks, Strategy, WithTruth, hooks_of, on_host, part, weighted_sum
from fedstale.core.abilities import names_of
from fedstale.core.hooks import Sensitivity
from fedstale.core.records import Array, Ids, Job, Reply, Round, Snapshot, State
from fedstale.lab.runs.metrics import percent
from fedstale.simulate import Play, Run

LOOKS = (10, 40, 160, 640)  # rounds that are looked at
SHORT = 0.25  # of FedAvg's step
FEW = 5  # clients whose loss is computed again
RISEN = 1.1  # times the loss before training
GROWN = 10.0  # times the clients' losses in round 1
OFTEN = 3.0  # times as often as p says
SURE = 5.0  # deviations of a count from what is expected
ENOUGH = 40  # rounds before p is judged


class Traced(NamedTuple):
    """The state of a traced strategy."""

    inner: State
    shadow: State
    weights: Array  # (n,) realised in the last round; a_i would be perfect


@part
class Tracer:
    """The same strategy, which also keeps the weight that each client had in its last step.

    A rule whose coefficients depend on the updates themselves is traced with the ones that it would
    choose for one-hot updates.
    """

    strategy: Strategy
    observes: ClassVar[bool] = True

    def __repr__(self) -> str:
        return repr(self.strategy)

    def hooks(self) -> Hooks:
        """Those of the strategy inside; what changes its state changes that of its shadow as well."""
        return hooks_of(self.strategy).lifted("inner", "shadow")

    @property
    def sensitivity(self) -> Sensitivity | None:
        """That of the strategy inside, whose steps are not changed."""
        return self.hooks().sensitivity

    def init(self, n: int, d: int) -> Traced:
        return Traced(self.strategy.init(n, d), self.strategy.init(n, n), np.zeros(n, np.float32))

    def aggregate(self, state: Traced, r: Round) -> tuple[Array, Traced]:
        step, inner = self.strategy.aggregate(state.inner, r)
        n, m = len(r.weights), len(r.clients)
        ones = np.zeros((m, n), np.float32)
        ones[np.arange(m), r.clients] = 1
        heard = r.arrived.any(axis=1).reshape(m, 1)
        plain = r._replace(params=np.zeros(n, np.float32), updates=ones, arrived=heard, starts=None)
        if r.gradients is not None and r.work:  # whose step makes a one-hot update
            plain = plain._replace(gradients=-ones * (r.work.steps / r.work.rates)[:, None].astype(np.float32))
        weights, shadow = self.strategy.aggregate(state.shadow, plain)
        return step, Traced(inner, shadow, on_host(weights))


def traceable(strategy: Strategy) -> bool:
    """Whether weights can be realised: not if clients begin at points of their own, which are no updates."""
    hooks = hooks_of(strategy)
    return not (hooks.starts or hooks.unheard)


class Concerns:
    """Looks at the rounds of a run; `found` has, by kind, the sentences about the latest round."""

    def __init__(self, run: Run) -> None:
        self.engine, self.n, self.names = run.engine, run.engine.task.n, names_of(run.engine.task)
        given = isinstance(run.estimator, WithTruth)
        self.divides = given and hooks_of(run.strategy).inverse_weighting  # by given p_i
        self.found: dict[str, str] = {}
        self.ratio = 1.0  # of the step to FedAvg's, in the latest round that was looked at

    def listening(self, play: Play) -> Play:
        """The same play; the replies of the rounds that are looked at are seen on their way."""
        try:
            while (job := next(play, None)) is not None:
                reply = yield job
                done = play.send(reply)
                self.found = {}
                if isinstance(done, Snapshot) and done.t in LOOKS and isinstance(job, Job) and reply is not None:
                    self._look(job, reply, done)
                yield done
        finally:
            play.close()

    def _look(self, job: Job, reply: Reply, s: Snapshot) -> None:
        rows = np.flatnonzero(np.isin(job.clients, s.clients))
        if len(rows) == 0:
            return
        a = self.engine.task.weights[job.clients[rows]].astype(np.float64)
        plain = on_host(weighted_sum(a / max(float(a.sum()), 1e-300), reply.updates[rows]))  # FedAvg's step
        self.ratio = float(np.linalg.norm(s.step.astype(np.float64)) / max(float(np.linalg.norm(plain)), 1e-300))
        if risen := _risen(self.engine, job, reply, rows[:FEW]):
            self.found["rate"] = risen

    def after(self, s: Snapshot, last: Ids, lines: Callable[[], Sequence[Mapping[str, Any]]]) -> dict[str, str]:
        """By kind what is to be said after this round; `last` has the round in which each client was last heard."""
        if s.t not in LOOKS:
            return {}
        found, never = dict(self.found), int((last == 0).sum())
        if never and self.ratio < SHORT:
            far = f"the step of round {s.t} has {percent(self.ratio)} of the length of FedAvg's"
            found["steps"] = f"{never} of {self.n} clients were never heard; {far}"
        past = lines()
        losses = [line["train_loss"] for line in past if line.get("train_loss")]
        if losses and losses[-1] > GROWN * abs(losses[0]):
            far = f"the clients' losses are {losses[-1] / abs(losses[0]):.0f} times those of round 1"
            found.setdefault("rate", f"{far}: local.lr may be too large")
        if self.divides and s.t >= ENOUGH:
            found |= judged(s, [line["heard"] for line in past if "heard" in line], self.names)
        return found


def _risen(engine: Engine, job: Job, reply: Reply, rows: Ids) -> str:
    """Whether the loss of most of these clients' first batch is higher after training than before."""
    worse = 0
    for done, k in enumerate(rows.tolist()):
        if done - worse >= len(rows) / 2:  # most are not, whatever comes
            return ""
        start = job.params if job.starts is None else job.starts[k]
        one = job._replace(
            params=start + on_host(reply.updates[k]), clients=job.clients[k : k + 1], drift=None, starts=None
        )
        with np.errstate(over="ignore", invalid="ignore"):
            worse += not float(engine.losses(one)[0]) <= RISEN * reply.losses[k]
    if worse <= len(rows) / 2:
        return ""
    many = f"{worse} of {len(rows)} clients"
    return f"the loss of {many} is higher after training than before: local.lr may be too large"


def judged(s: Snapshot, heard: Sequence[Sequence[int]], names: Sequence[str]) -> dict[str, str]:
    """The client whose p contradicts most how often it was heard, if it is beyond chance and far."""
    rounds, p = len(heard), s.probs.astype(np.float64)
    if rounds < s.t - 1:  # there are too many clients to list them
        return {}
    visits = np.bincount(np.concatenate([np.asarray(h, np.int64) for h in heard]), minlength=len(p))
    expected = rounds * p
    sure = np.abs(visits - expected) > SURE * np.sqrt(np.maximum(expected * (1 - p), 1.0))
    ratio = (visits + 1) / (expected + 1)
    far = sure & (visits > 0) & ((ratio > OFTEN) | (ratio < 1 / OFTEN))  # nobody divides by the p of the others
    if not far.any():
        return {}
    i = int(np.argmax(far * np.abs(np.log(ratio))))
    who = names[i] if names else f"client {i}"
    return {"p": f"{who} was heard in {visits[i]} of {rounds} rounds, but its p is taken to be {p[i]:.2g}"}
