"""Tells trackers what runs write, from their files: in one go, or in a thread while other code computes them."""

import math
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from fedstale.core import BadInput
from fedstale.lab.runs import query
from fedstale.lab.runs.status import Tail
from fedstale.lab.runs.store import RunFolder
from fedstale.view.trackers.writers import Tracker, Writer, open_writer, package

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
    over = threading.Event()

    def look(step: str) -> None:
        for follower in list(followers):
            try:
                follower.update() if step == "update" else follower.close()
            except Exception as error:  # of the tracker's own package: any
                followers.remove(follower)
                warnings.warn(
                    f"{follower.tracker.value} is left out: {type(error).__name__}: {error}", stacklevel=2
                )

    def work() -> None:
        while not over.wait(SECONDS):
            look("update")

    thread = threading.Thread(target=work, daemon=True)
    if followers:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if followers:
            thread.join()
            look("update")
            look("close")


def log_runs(folder: str | PathLike[str], tracker: str, home: str | PathLike[str] = "logs") -> int:
    """Log the stored runs of a folder to `tensorboard`, `wandb` or `mlflow`, and return how many there are."""
    known = [t.value for t in Tracker]
    if tracker not in known:
        raise BadInput(f"the tracker must be one of {', '.join(known)}, got {tracker!r}")
    runs = query.find(Path(folder)).runs
    follower = Follower(runs, Tracker(tracker), Path(home))
    try:
        follower.update()
    finally:
        follower.close()
    return len(runs)
