"""The run of a Flower app in a store, with the files that `fedstale run` writes: see lab/runs/store."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.core import require
from fedstale.flower.federation.server.diagnostics import write_trace
from fedstale.flower.federation.state.server_state import Rules
from fedstale.flower.replies import Checked
from fedstale.flower.reports import Report, participation
from fedstale.flower.training import Training
from fedstale.lab.recorder import environment, summary
from fedstale.lab.runs import status
from fedstale.lab.runs.metrics import LISTED, ROUND_KEYS
from fedstale.lab.runs.models import LAYOUT
from fedstale.lab.runs.store import RunFolder, fingerprint, open_store, write_json
from fedstale.lab.spec import describe
from fedstale.registry import ESTIMATORS, SERVERS, STRATEGIES

NUMBER = 4  # bytes of a number that is sent


class Record:
    """Writes the folder of one training: a line of metrics for each round, the result at the end."""

    def __init__(self, folder: RunFolder, label: str, rules: Rules, rounds: int, training: Training | None) -> None:
        """`training` is what a resumed one starts from: the lines of its rounds must be in the folder."""
        self.folder, self.before = folder, 0 if training is None else training.population.checkpoint.t
        self.began, self.reports = time.monotonic(), list[Report]()
        known = folder.clients().get("name", []) if self.before else []
        self.numbers = {str(name): k for k, name in enumerate(known)}  # of clients, in the order in which they came
        parts = {"strategy": (rules.strategy, STRATEGIES), "estimator": (rules.plain, ESTIMATORS)}
        parts["server"] = (rules.server, SERVERS)
        self.config = {
            "label": label, "seed": int(folder.path.name.rpartition("-")[2]), "rounds": self.before + rounds,
            "data": {"dataset": "flower app", "version": version("flwr")}, "participation": {"kind": "flower"},
        } | {key: describe(part, names) for key, (part, names) in parts.items()}  # fmt: skip
        if not self.before:
            folder.clear()
        (folder.path / "checksums.json").unlink(missing_ok=True)
        (folder.path / "result.json").unlink(missing_ok=True)
        write_json(folder.path / "config.json", self.config)
        write_json(folder.path / "environment.json", environment(" ".join(sys.argv)))
        self.file = folder.open_metrics(self.before)
        self.line: dict[str, Any] = {}
        self.end = self.file.tell()  # of the lines before the last one
        self.status = status.Writer(folder, self.before + rounds, 0, self.before)

    def round(self, report: Report, before: Training, after: Training, heard: Mapping[int, Checked]) -> None:
        """Write the line of a round that has closed, with the replies that were used."""
        self.reports.append(report)
        names, now = after.population.names, after.population.checkpoint.params
        step = float(np.linalg.norm(now.astype(np.float64) - before.population.checkpoint.params))
        if new := [name for name in report.clients if name not in self.numbers]:
            self.numbers |= {name: len(self.numbers) + k for k, name in enumerate(new)}
            write_json(self.folder.path / "clients.json", {"name": [*self.numbers]})
        told = {k: reply.loss for k, reply in heard.items() if np.isfinite(reply.loss)}
        total = sum(float(report.weights[k]) for k in told)
        loss = sum(float(report.weights[k]) * x for k, x in told.items()) / total if total > 0 else None
        asked = len(report.heard) + len(report.refused) + len(report.missing)
        came = sorted((names[k] for k in heard), key=self.numbers.__getitem__)
        self.end = self.file.tell()
        self.line = {
            "round": report.t, "available": asked, "participants": len(came), "refused": len(report.doubted),
            "heard_weight": round(report.heard_weight, 6),
            "train_loss": loss, "step_norm": step,
            "staleness": [float(q) for q in np.quantile(_rounds(report), [0.5, 0.9, 1.0])],
            "bytes_up": NUMBER * len(now) * len(came), "bytes_down": NUMBER * len(now) * asked,
            "seconds": round(report.seconds, 3),
        }  # fmt: skip
        self.line |= {} if report.beta is None else {"beta": report.beta}
        if len(self.numbers) <= LISTED:
            self.line["heard"] = [self.numbers[name] for name in came]
            self.line |= {"ages": [report.ages[name] for name in came]} if report.ages else {}
        self._write()

    def evaluated(self, metrics: Mapping[str, Any]) -> None:
        """Add what the model of the last round was found to be worth to its line."""
        found = {k: float(v) for k, v in metrics.items() if isinstance(v, int | float) and np.isfinite(v)}
        self.line |= {k: v for k, v in found.items() if k not in ROUND_KEYS and k != "num-examples"}
        if self.reports:
            self._write()

    def _write(self) -> None:
        """The line of the last round, in the place of what was known of it before."""
        self.file.truncate(self.end)
        self.file.seek(self.end)
        self.file.write(json.dumps(self.line, separators=(",", ":")).encode() + b"\n")
        self.file.flush()
        if self.status.due():
            self.status.write(int(self.line["round"]))

    def finish(self, training: Training) -> None:
        """Write the files of a finished run, its result last."""
        folder, now, lines = self.folder, training.population.checkpoint, self.folder.metrics()
        self.status.write(now.t)
        folder.save_params(now.params)
        pieces = [{"name": s.name, "shape": [*s.shape], "dtype": "float32"} for s in training.layout.parameters]
        write_json(folder.path / LAYOUT, {"parameters": pieces, "buffers": []})
        write_trace(folder.path / "trace.csv", *participation(self.reports))
        weights = dict(zip(training.population.names, training.population.weights.tolist(), strict=True))
        if len(self.numbers) <= LISTED:
            told = [float(f"{weights.get(name, 0.0):.6g}") for name in self.numbers]
            write_json(folder.path / "clients.json", {"name": [*self.numbers], "weight": told})
        seconds = time.monotonic() - self.began
        folder.save_result(summary(lines) | {
            "rounds": now.t, "refused": sum(line["refused"] for line in lines),
            "fingerprint": fingerprint(now.params), "bytes_up": sum(line["bytes_up"] for line in lines),
            "bytes_down": sum(line["bytes_down"] for line in lines), "seconds": round(seconds, 3),
            "rounds_per_second": round((now.t - self.before) / max(seconds, 1e-9), 2),
        })  # fmt: skip


@contextmanager
def recording(store: Path, label: str, rules: Rules, rounds: int, training: Training | None) -> Iterator[Record]:
    """The record of a training in a store: `auto-1`, `auto-2`, …; a resumed one goes on with the last of them."""
    open_store(store)
    word = "".join(c if c.isalnum() or c in "._" else "-" for c in label).strip("-").lower()
    numbers = [n for p in store.glob(f"{word}-*") if (n := p.name.removeprefix(f"{word}-")).isdigit()]
    last = max(map(int, numbers), default=0)
    folder = RunFolder(store / f"{word}-{last + (training is None)}")
    ok = training is None or folder.rounds_recorded() >= training.population.checkpoint.t
    require(ok, f"{store} has not the rounds of {label} that this state has: resume with the folder of its record")
    with folder.locked():
        record = Record(folder, label, rules, rounds, training)
        try:
            yield record
        finally:
            record.file.close()


def _rounds(report: Report) -> Any:
    """(n,) rounds since each client was heard; of one that never was, all."""
    return np.where(report.staleness >= 0, report.staleness, report.t)
