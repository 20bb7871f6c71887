"""Tells trackers what runs write, from their files: in one go, or in a thread while other code computes them.

Each of them needs its package, which is an extra: tensorboard, wandb, mlflow.
"""

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from fedstale.core import BadInput
from fedstale.core.system import meanwhile
from fedstale.lab.runs import named
from fedstale.lab.runs.query import flat
from fedstale.lab.runs.status import Tail
from fedstale.lab.runs.store import RunFolder

PROJECT = "fedstale"
BATCH = 500  # numbers that MLflow is told at once
LONGEST = 500  # letters of a setting
Values = Mapping[str, float]


class Tracker(StrEnum):
    """Where runs can be logged."""

    tensorboard = "tensorboard"
    wandb = "wandb"
    mlflow = "mlflow"


class Writer(Protocol):
    """One run in a tracker."""

    def log(self, t: int, values: Values) -> None:
        """Add the numbers of round t."""

    def close(self) -> None:
        """The run is finished."""


class TensorBoard:
    """Event files in HOME/tensorboard/RUN, by tensorboardX."""

    def __init__(self, name: str, config: Mapping[str, Any], home: Path) -> None:
        self.writer = package(Tracker.tensorboard).SummaryWriter(str(home / "tensorboard" / name))
        text = "\n".join(f"    {key}: {value}" for key, value in settings(config).items())
        self.writer.add_text("configuration", text or "    –")

    def log(self, t: int, values: Values) -> None:
        for key, value in values.items():
            self.writer.add_scalar(key, value, t)

    def close(self) -> None:
        self.writer.close()


class WandB:
    """A run of Weights & Biases; offline in HOME/wandb, unless WANDB_MODE says otherwise."""

    def __init__(self, name: str, config: Mapping[str, Any], home: Path) -> None:
        wandb = package(Tracker.wandb)
        home.mkdir(parents=True, exist_ok=True)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=name, config=dict(config), dir=str(home),
            mode=os.environ.get("WANDB_MODE", "offline"), reinit="create_new", settings=wandb.Settings(silent=True),
        )  # fmt: skip

    def log(self, t: int, values: Values) -> None:
        self.run.log(dict(values), step=t)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """A run of MLflow, in files in HOME/mlflow, unless MLFLOW_TRACKING_URI names a server."""

    def __init__(self, name: str, config: Mapping[str, Any], home: Path) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        mlflow = package(Tracker.mlflow)
        self.entities = import_module("mlflow.entities")
        where = os.environ.get("MLFLOW_TRACKING_URI") or (home.resolve() / "mlflow").as_uri()
        self.client = mlflow.MlflowClient(tracking_uri=where)
        known = self.client.get_experiment_by_name(PROJECT)
        place = known.experiment_id if known else self.client.create_experiment(PROJECT)
        self.id = self.client.create_run(place, run_name=name).info.run_id
        params = [self.entities.Param(_allowed(key), value) for key, value in settings(config).items()]
        self.client.log_batch(self.id, params=params[:100])
        self.waiting: list[Any] = []

    def log(self, t: int, values: Values) -> None:
        now = int(1000 * time.time())
        self.waiting += [self.entities.Metric(_allowed(key), value, now, t) for key, value in values.items()]
        if len(self.waiting) >= BATCH:
            self._send()

    def _send(self) -> None:
        for k in range(0, len(self.waiting), BATCH):
            self.client.log_batch(self.id, metrics=self.waiting[k : k + BATCH])
        self.waiting = []

    def close(self) -> None:
        self._send()
        self.client.set_terminated(self.id)


WRITERS: dict[Tracker, Callable[[str, Mapping[str, Any], Path], Writer]] = {
    Tracker.tensorboard: TensorBoard,
    Tracker.wandb: WandB,
    Tracker.mlflow: MLflow,
}
MODULES = {Tracker.tensorboard: "tensorboardX", Tracker.wandb: "wandb", Tracker.mlflow: "mlflow"}


def package(tracker: Tracker) -> Any:
    """The package of a tracker; a sentence says how to install a missing one."""
    try:
        return import_module(MODULES[tracker])
    except ModuleNotFoundError:
        how = f"pip install 'fedstale[{tracker.value}]'"
        raise BadInput(f"--log {tracker.value} needs {MODULES[tracker]}: {how}") from None


def open_writer(tracker: Tracker, run: RunFolder, home: Path) -> Writer:
    """A run in a tracker, named as its folder and with its configuration; the state of a federation has none."""
    if not (run.path / "config.json").exists():
        return WRITERS[tracker](run.path.resolve().parent.name, {}, home)
    return WRITERS[tracker](run.path.name, run.config(), home)


def settings(config: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a run by dotted names, as short texts."""
    return {key: str(value)[:LONGEST] for key, value in flat(config).items()}


def _allowed(key: str) -> str:
    """A name with the letters that MLflow allows."""
    return "".join(c if (c.isalnum() and c.isascii()) or c in "_-. /" else "_" for c in key)


SECONDS = 2.0  # from one look at the files to the next
QUANTILES = ("staleness_median", "staleness_90", "staleness_oldest")


class Follower:
    """Forwards the lines of some runs to one tracker, each line once."""

    def __init__(self, runs: Sequence[RunFolder], tracker: Tracker, home: Path) -> None:
        package(tracker)  # say now what is missing
        self.tracker, self.home = tracker, home
        self.tails = {run.path: Tail(run) for run in runs}
        self.writers: dict[Path, Writer] = {}
        self.told = 0  # lines so far

    def update(self) -> None:
        """Tell what has been written since the last time; a finished run is closed."""
        for path, tail in list(self.tails.items()):
            for line in tail.new_lines():
                if path not in self.writers:
                    self.writers[path] = open_writer(self.tracker, tail.folder, self.home)
                self.writers[path].log(int(line["round"]), values(line))
                self.told += 1
            if path in self.writers and tail.folder.finished:
                del self.tails[path]
                self.writers.pop(path).close()

    def close(self) -> None:
        """Close the runs that are still open."""
        while self.writers:
            self.writers.popitem()[1].close()


def values(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of metrics that a tracker can draw."""
    flat = dict(line) | dict(zip(QUANTILES, line.get("staleness") or (), strict=False))
    named = {key: value for key, value in flat.items() if key != "round" and isinstance(value, int | float)}
    return {key: float(value) for key, value in named.items() if math.isfinite(value)}


@contextmanager
def following(runs: Sequence[RunFolder], trackers: Sequence[Tracker], home: Path) -> Iterator[None]:
    """Log these runs as long as the block lasts; a tracker that fails is left out with a warning."""
    followers = [Follower(runs, Tracker(tracker), home) for tracker in trackers]

    def look(step: str) -> None:
        for follower in list(followers):
            try:
                follower.update() if step == "update" else follower.close()
            except Exception as error:  # of the tracker's own package: any
                followers.remove(follower)
                warnings.warn(
                    f"{follower.tracker.value} is left out: {type(error).__name__}: {error}", stacklevel=2
                )

    try:
        with meanwhile(partial(look, "update"), SECONDS):
            yield
    finally:
        look("update")
        look("close")


def log_runs(folder: str | PathLike[str], tracker: str, home: str | PathLike[str] = "logs") -> int:
    """Log the stored runs of a folder to `tensorboard`, `wandb` or `mlflow`, and return how many there are."""
    known = [t.value for t in Tracker]
    if tracker not in known:
        raise BadInput(f"the tracker must be one of {', '.join(known)}, got {tracker!r}")
    runs = named.find(Path(folder)).runs
    follower = Follower(runs, Tracker(tracker), Path(home))
    try:
        follower.update()
    finally:
        follower.close()
    return len(runs)
