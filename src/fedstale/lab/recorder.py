"""Records a run: one line of metrics per round, the latest checkpoint, the final result."""

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from fedstale.core import CountsSamples, evaluate, scores_of_clients
from fedstale.core.abilities import DescribesModel, HasBeta, HasExcluded, HasInner, labels_of, names_of
from fedstale.core.hooks import hooks_of
from fedstale.core.parts import BadInput, able, require
from fedstale.core.protocols import Task
from fedstale.core.records import Checkpoint, Ids, Snapshot
from fedstale.lab import lineage
from fedstale.lab.cadence import LAST, Stopping, cadence, evaluation_task
from fedstale.lab.plan import Planned
from fedstale.lab.probes import Concerns, Traced
from fedstale.lab.runs import status
from fedstale.lab.runs.checks import FILE as CHECKSUMS
from fedstale.lab.runs.metrics import LISTED, ROUND_KEYS, metric
from fedstale.lab.runs.models import LAYOUT
from fedstale.lab.runs.store import fingerprint, sync, write_json, write_tree
from fedstale.lab.spec import Table
from fedstale.privacy.gaussian import epsilon_of
from fedstale.privacy.noise import Accounted
from fedstale.privacy.sums import Sums
from fedstale.simulate import Run, first
from fedstale.theory import heterogeneity

VERSION: str = import_module("fedstale").__version__  # of the code that runs, installed or not
SHOWS = ("cli/", "view/", "flower/", "lab/papers/", "lab/advise/", "lab/arena/")  # compute no number of a run


class Tally(NamedTuple):
    """Running totals that the metrics of the next round need."""

    last: Ids  # (n,) the round each client was last heard from, 0 before the first
    weights: Any  # (n,) float64, sum of the realised weights so far
    refused: int  # updates that were not finite


class Saved(NamedTuple):
    """What a checkpoint file holds."""

    checkpoint: Checkpoint
    tally: Tally


class Recorder:
    """Writes the folder of one run, round by round, from its first round or, with `resume`, from its checkpoint.

    With `extend` it goes on from a shorter run of the same settings, as if it had never stopped. A checkpoint is
    saved every so many `seconds`; a finished run keeps its last one only with `keep`.
    """

    def __init__(
        self, p: Planned, run: Run, *, where: Table, resume: bool, seconds: float, keep: bool, extend: bool = False
    ) -> None:
        self.planned, self.run, self.folder, self.task = p, run, p.folder, run.engine.task
        self.seconds, self.keep = seconds, keep
        self.cadence = cadence(run, p.config)
        saved = self._load() if resume and p.folder.started else None
        self.note = ""
        if saved is None:
            p.folder.clear()
            saved, where = self._begun(resume, extend, where)
        (p.folder.path / CHECKSUMS).unlink(missing_ok=True)  # of a run that was killed before its result
        write_json(p.folder.path / "config.json", p.config, durable=False)
        write_json(p.folder.path / "environment.json", where, durable=False)
        if (names := names_of(self.task)) and self.task.n <= LISTED:
            write_json(p.folder.path / "clients.json", {"name": names}, durable=False)
        self.evaluated = evaluation_task(self.task, p.config, self.cadence.clients)
        self.start, self.tally = saved or self._empty()
        if p.warmup and saved is None:
            before = p.warmup.folder
            self.start = self.start._replace(params=before.params(), buffers=before.buffers())
            if self.start.clients is not None and (kept := before.client_states()):
                self.start = self.start._replace(clients=kept)
        self.concerns = Concerns(run)
        self.stopping = Stopping(p.config)
        if self.stopping.asked:
            for line in p.folder.metrics()[: self.start.t]:
                self.stopping.see(line)
        self.point = hooks_of(run.strategy).point
        self.saved = self.start.t  # the round of the last checkpoint
        self.stop_asked = False
        p.folder.forget_stop()
        self.file: IO[bytes] = p.folder.open_metrics(self.start.t)
        self.status = status.Writer(p.folder, run.rounds, self.task.d, self.start.t)
        self.started_at = self.saved_at = time.monotonic()

    def _begun(self, resume: bool, extend: bool, where: Table) -> tuple[Saved | None, Table]:
        """What another run leaves to this one, if anything, and the environment with where it comes from."""
        p = self.planned
        begun = lineage.fork(p, first(self.run), self._empty()) if p.start else None
        if begun is None and (resume or extend):
            begun = lineage.go_on(p, self._empty(), self.due if extend else None)
        if begun is None:
            return None, where
        self.note = begun.note
        known = {"continued": f"{begun.before.path.name}@{begun.saved.checkpoint.t}"} if begun.saved else {}
        return begun.saved, where | known

    def _empty(self) -> Saved:
        n = self.task.n
        return Saved(first(self.run), Tally(np.zeros(n, np.int64), np.zeros(n), 0))

    def _load(self) -> Saved | None:
        """The checkpoint with the metrics up to it; None, and a warning, where they are damaged."""
        try:
            saved: Saved = self.folder.load_checkpoint(self._empty())
            self.folder.open_metrics(saved.checkpoint.t).close()
            return saved
        except BadInput as error:
            warnings.warn(f"{error}; {self.folder.path.name} starts again from round 1", stacklevel=2)
            return None

    def record(self, s: Snapshot) -> dict[str, Any]:
        """Append the round's line; save a checkpoint now and then."""
        last = self.tally.last
        last[s.clients] = s.t
        state = s.checkpoint.state
        state = state.inner if isinstance(state, Accounted) else state  # without the ledger that may be around it
        realised = state.weights if isinstance(state, Traced) else None
        total = self.tally.weights if realised is None else self.tally.weights + realised
        self.tally = Tally(last, total, self.tally.refused + len(s.refused))
        line = self._line(s) | (self._evaluation(s, realised is not None) if self.due(s.t) else {})
        if told := self.concerns.after(s, last, self._lines):
            line["warnings"] = told
        self.stopping.see(line)
        self.file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        if time.monotonic() - self.saved_at >= self.seconds:
            self.save(s.checkpoint)
        if self.status.due():
            self.file.flush()  # so that others see the rounds
            self.status.write(s.t)
            self.stop_asked = self.folder.stop_asked
        return line

    def _lines(self) -> list[dict[str, Any]]:
        """The rounds so far."""
        self.file.flush()
        return self.folder.metrics()

    def over(self, t: int) -> bool:
        """Whether the run ends with round t, which is the latest."""
        return t == self.run.rounds or bool(self.stopping.why)

    def due(self, t: int) -> bool:
        """Whether round t is evaluated."""
        return self.cadence.due(t, self.run.rounds)

    def _line(self, s: Snapshot) -> dict[str, Any]:
        a = self.task.weights[s.clients].astype(np.float64)
        line: dict[str, Any] = {
            "round": s.t, "available": len(s.available), "participants": len(s.clients), "refused": len(s.refused),
            "heard_weight": round(float(a.sum()), 6),
            "train_loss": float(a @ s.losses / a.sum()) if a.sum() > 0 else None,
            "step_norm": float(np.linalg.norm(s.step.astype(np.float64))),
            "staleness": quantiles(s.t - self.tally.last, 0.5, 0.9, 1.0),
            "bytes_up": s.bytes_up, "bytes_down": s.bytes_down,
        }  # fmt: skip
        if s.seconds is not None:
            line |= {"seconds": round(s.seconds, 3), "lost_work": s.lost, "idle": round(s.idle or 0.0, 4)}
        told, state = self._private(s.checkpoint.state)
        line |= told
        if able(state, HasBeta):
            line["beta"] = state.beta
        if self.task.n <= LISTED:
            line["heard"] = s.clients.tolist()
            if s.ages is not None:
                line["ages"] = s.ages.tolist()
            if len(s.chosen) < len(s.available):
                line["not_selected"] = np.setdiff1d(s.available, s.chosen).tolist()
            if len(s.clients) < len(s.chosen):
                line["lost"] = np.setdiff1d(s.chosen, s.clients).tolist()
            if able(state, HasExcluded):
                line["excluded"] = np.flatnonzero(state.excluded).tolist()
        return line

    def _private(self, state: Any) -> tuple[dict[str, Any], Any]:
        """The largest ε, or how many entries secure aggregation has cut; and the state of the innermost rule."""
        told: dict[str, Any] = {}
        if isinstance(state, Accounted):
            told["epsilon"] = epsilon_of(float(np.sqrt(state.ledger.spent.max())), state.ledger.delta)
        while able(state, HasInner):
            told |= {"clipped": state.clipped} if isinstance(state, Sums) and state.secure else {}
            state = state.inner
        return told, state

    def _evaluation(self, s: Snapshot, traced: bool) -> dict[str, Any]:
        values: dict[str, Any] = {key: float(value) for key, value in evaluate(self.evaluated, s).items()}
        if self.point:
            own = evaluate(self.evaluated, s.checkpoint._replace(params=self.point(s.checkpoint.state, s.params)))
            values |= {f"own_{key}": float(value) for key, value in own.items()}
        if self.planned.config.get("heterogeneity"):
            values |= heterogeneity(self.task, s.params, draws=100).numbers()  # of noisy gradients
        if traced:
            values["weights"] = [float(f"{w:.6g}") for w in self.tally.weights / s.t]
        return values

    def save(self, checkpoint: Checkpoint) -> None:
        """Write what is there to the disk first, then the checkpoint that relies on it."""
        self._sync()
        self.folder.save_checkpoint(Saved(checkpoint, self.tally))
        self.saved, self.saved_at = checkpoint.t, time.monotonic()

    def _sync(self) -> None:
        self.file.flush()
        for name in ("config.json", "environment.json", "metrics.jsonl"):
            sync(self.folder.path / name)

    def finish(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Write the files of a finished run, its result last; one with a checkpoint waits for the disk."""
        durable = self.keep or self.saved > 0
        self.save(checkpoint) if self.keep else self._sync() if durable else self.file.flush()
        self.status.write(checkpoint.t)
        self.folder.save_params(checkpoint.params, checkpoint.buffers, durable)
        self.folder.save_client_states(checkpoint.clients, durable)
        if isinstance(self.task, DescribesModel):
            write_json(self.folder.path / LAYOUT, self.task.layout(), durable)
        if self.task.n <= LISTED:
            write_json(self.folder.path / "clients.json", client_table(self.task, checkpoint), durable)
        seconds = time.monotonic() - self.started_at
        lines = self.folder.metrics()
        gone = f"{self.folder.path}/metrics.jsonl was cut or deleted during the run; --resume starts it again"
        require(len(lines) == checkpoint.t, gone)
        result = summary(lines) | {
            "rounds": checkpoint.t,
            "refused": self.tally.refused,
            **({"warnings": told} if (told := warned(lines)) else {}),
            **({"stopped": self.stopping.why} if self.stopping.why else {}),
            "fingerprint": fingerprint(checkpoint.params),
            **({"evaluated_clients": self.cadence.clients} if self.cadence.clients else {}),
            "bytes_up": sum(line.get("bytes_up", 0) for line in lines),
            "bytes_down": sum(line.get("bytes_down", 0) for line in lines),
            **self._clock(lines),
            "seconds": round(seconds, 3),
            "rounds_per_second": round((checkpoint.t - self.start.t) / max(seconds, 1e-9), 2),
        }
        in_files = any(self.folder.path.rglob("memory-*.rows"))  # the rows of a memory, which are dropped
        if self.task.n * self.task.d <= lineage.SMALL and not in_files:
            write_tree(self.folder.path / lineage.LAST, Saved(checkpoint, self.tally), durable)
        self.folder.save_result(result, durable)
        if not self.keep:
            self.folder.drop_checkpoint()
        return result

    def _clock(self, lines: list[dict[str, Any]]) -> dict[str, Any]:
        """Of a run with a clock: when it ended, the work in vain, and who was never heard."""
        if self.run.clock is None:
            return {}
        found = {"seconds": lines[-1]["seconds"], "lost_work": sum(line["lost_work"] for line in lines)}
        idle = float(np.mean([line["idle"] for line in lines]))
        return {"clock": found | {"idle": round(idle, 4), "never_heard": int((self.tally.last == 0).sum())}}

    def close(self) -> None:
        """Close the file of metrics."""
        self.file.close()


def client_table(task: Task, now: Checkpoint) -> dict[str, list[Any]]:
    """Each client's name and weight and, where the task has them, its scores; null without test samples."""
    values, names = {"weight": task.weights, **scores_of_clients(task, now)}, names_of(task)
    if isinstance(task, CountsSamples):
        values["samples"] = task.samples
    if isinstance(now.state, Accounted):
        values["epsilon"] = now.state.ledger.epsilons()
    told = {key: [*of] for key, of in (("name", names), ("labels", labels_of(task))) if of}
    return told | {name: [float(f"{v:.6g}") if np.isfinite(v) else None for v in of] for name, of in values.items()}


def quantiles(values: Ids, *shares: float) -> list[float]:
    """Those of np.quantile, to the bit, which takes ten times as long for few values."""
    places = [(len(values) - 1) * share for share in shares]
    ends = [(int(place), min(int(place) + 1, len(values) - 1)) for place in places]
    order = np.partition(values, sorted({k for end in ends for k in end}))
    found = []
    for place, (k, above) in zip(places, ends, strict=True):
        low, high, t = float(order[k]), float(order[above]), place - k
        found.append(low + (high - low) * t if t < 0.5 else high - (high - low) * (1 - t))
    return found


def summary(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """Per evaluated value: at the end, mean over the last 10 rounds as far as they are evaluated, and the best."""
    found: dict[str, Any] = {}
    for name in (key for key in metrics[-1] if key not in ROUND_KEYS):
        values = [line[name] for line in metrics if name in line]
        last = [line[name] for line in metrics[-LAST:] if name in line]
        found[name] = {"final": values[-1], "last10": float(np.mean(last)), "best": metric(name).best(values)}
    return found


def warned(lines: list[dict[str, Any]]) -> list[str]:
    """What was said of a run, each kind as it was said last."""
    found: dict[str, str] = {}
    for line in lines:
        found |= line.get("warnings", {})
    return list(found.values())


def environment(command: str) -> dict[str, Any]:
    """Versions, machine, git state and command: to repeat the run elsewhere, or to see why it differs."""
    return {
        "command": command, "folder": str(Path.cwd()),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "python": sys.version.split()[0],
        "packages": packages(), "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "git": _git(),
    }  # fmt: skip


@cache
def packages() -> dict[str, str | None]:
    """The versions that the numbers of a run depend on; of this package also a hash of the code that computes."""
    root, code = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        if not file.relative_to(root).as_posix().startswith(SHOWS):
            code.update(file.read_bytes())
    ours = f"{VERSION} ({code.hexdigest()[:8]})"
    return {"fedstale": ours} | {name: _version(name) for name in ("numpy", "torch", "numba")}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Commit and whether files were changed, of the folder the command ran in."""
    try:
        ask = [["git", "rev-parse", "HEAD"], ["git", "status", "--porcelain", "--untracked-files=no"]]
        head, changed = (
            subprocess.run(c, capture_output=True, text=True, check=True, timeout=10).stdout for c in ask
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": head.strip(), "changed": bool(changed.strip())}
