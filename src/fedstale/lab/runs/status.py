"""How far a run is while it is computed: `status.json` in its folder, for those who watch from other processes.

It is replaced about once a second, whole, and no result depends on it. Its marks are pairs of a round and the
seconds that the run had taken by then, a few hundred at most, so that curves can be drawn over seconds.

`Tail` reads the metrics of a run that may still grow, on from where the last reading ended. Up to MOST lines are
kept as they are; of a longer run every second, fourth, … line, and beside them the evaluated ones if these are few.
"""

import dataclasses
import json
import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import BadInput, Floats
from fedstale.lab.runs.checks import require_whole
from fedstale.lab.runs.metrics import METRICS
from fedstale.lab.runs.store import RunFolder, metrics_line, read_json, write

FILE = "status.json"
SECONDS = 1.0  # from one status to the next
MARKS = 256  # of more, every second one is dropped
LATELY = 10.0  # seconds over which the speed is measured


class Status(NamedTuple):
    """A run at one moment."""

    round: int
    rounds: int
    seconds: float  # of computing, by all processes that have worked on the run
    parameters: int
    marks: list[tuple[int, float]]

    @property
    def speed(self) -> float | None:
        """Rounds per second lately; None before two moments are known."""
        if len(self.marks) < 2:
            return None
        end = self.marks[-1]
        begin = next((m for m in reversed(self.marks[:-1]) if end[1] - m[1] >= LATELY), self.marks[0])
        return (end[0] - begin[0]) / (end[1] - begin[1]) if end[1] > begin[1] else None

    @property
    def seconds_left(self) -> float | None:
        """The estimated time until the last round; None where the speed is not known."""
        return (self.rounds - self.round) / self.speed if self.speed else None

    def seconds_at(self, rounds: npt.ArrayLike) -> Floats:
        """The seconds that the run had taken by these rounds, straight between the marks."""
        known = [(0, 0.0), *self.marks]
        return np.interp(np.asarray(rounds, np.float64), [t for t, _ in known], [s for _, s in known])


def duration(seconds: float | None) -> str:
    """`45 s`, `12 min`, `3.5 h`; `–` of nothing."""
    if seconds is None:
        return "–"
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def state(folder: RunFolder) -> str:
    """What has become of a run: running, finished, diverged or interrupted."""
    if (folder.path / "result.json").exists() and folder.finished:
        return "finished"
    return "running" if folder.busy else "diverged" if (folder.path / "diverged.json").exists() else "interrupted"


def read(folder: RunFolder) -> Status | None:
    """The status of a run; None where there is none, or none that can be read."""
    try:
        found = read_json(folder.path / FILE)
        marks = [(int(t), float(s)) for t, s in found["marks"]]
        numbers = int(found["round"]), int(found["rounds"]), float(found["seconds"]), int(found["parameters"])
        return Status(*numbers, marks)
    except (BadInput, KeyError, TypeError, ValueError):
        return None


@dataclasses.dataclass
class Writer:
    """Keeps the status of one run; a resumed run goes on from the marks up to its checkpoint."""

    folder: RunFolder
    rounds: int
    parameters: int
    start: int  # the round of the checkpoint that the run begins from

    def __post_init__(self) -> None:
        before = read(self.folder) if self.start else None
        self.marks = [m for m in before.marks if m[0] <= self.start] if before else []
        self.before = self.marks[-1][1] if self.marks else 0.0
        self.began = time.monotonic()
        self.write(self.start)

    def due(self) -> bool:
        """Whether the last status is old enough for a new one."""
        return time.monotonic() - self.written >= SECONDS

    def write(self, t: int) -> None:
        """Replace the file; it need not survive a power failure, so nobody waits for the disk."""
        self.written = time.monotonic()
        seconds = round(self.before + self.written - self.began, 3)
        if not self.marks or t > self.marks[-1][0]:
            self.marks.append((t, seconds))
        if len(self.marks) > MARKS:
            self.marks = self.marks[1::2]
        found = Status(t, self.rounds, seconds, self.parameters, self.marks)
        text = json.dumps(found._asdict(), separators=(",", ":")).encode()
        write(self.folder.path / FILE, lambda file: file.write(text), durable=False)


MOST = 4096
EVALUATED = re.compile(rb'"(?:%s)":' % b"|".join(m.name.encode() for m in METRICS))


class Tail:
    """The lines of one run; `update` reads what is new."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.damage = ""  # what is wrong with the file, if anything is
        self._restart()

    def _restart(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.end, self.count, self.scored, self.stride, self.damage = 0, 0, 0, 1, ""

    def new_lines(self) -> Iterator[dict[str, Any]]:
        """The lines that were written since the last call, none of them kept; up to a damaged one."""
        for text in self._new():
            self.count += 1
            try:
                yield metrics_line(self.folder.path / "metrics.jsonl", self.count, text)
            except BadInput as error:
                self.damage = str(error)
                return
        self._compare()

    def _compare(self) -> None:
        """Forget the lines of a finished run that are not as it has written them."""
        try:
            require_whole(self.folder.path / "metrics.jsonl")
        except BadInput as error:
            self.lines, self.damage = [], str(error)

    def update(self) -> list[dict[str, Any]]:
        """The lines that are kept, with those that were written since the last call."""
        new = self._new()
        self.count += len(new)
        marks = [bool(EVALUATED.search(text)) for text in new]
        self.scored += sum(marks)
        while self.count > MOST * self.stride:
            self.stride *= 2
        first = self.count - len(new) + 1
        try:
            for k, (text, mark) in enumerate(zip(new, marks, strict=True), first):
                if self._kept(k, mark):
                    self.lines.append(metrics_line(self.folder.path / "metrics.jsonl", k, text))
            self._compare()
        except BadInput as error:
            self.damage = str(error)
        if len(self.lines) > 2 * MOST:
            self.lines = [x for x in self.lines if self._kept(x["round"], any(m.name in x for m in METRICS))]
        return self.lines

    def _kept(self, round: int, evaluated: bool) -> bool:
        """Round 1, every stride-th one, and evaluated ones where they are the smaller part."""
        return round == 1 or round % self.stride == 0 or (evaluated and 2 * self.scored < self.count)

    def _new(self) -> list[bytes]:
        """The complete lines after the last reading; from the first on, if the file was cut."""
        path = self.folder.path / "metrics.jsonl"
        try:
            if path.stat().st_size < self.end:
                self._restart()
            with path.open("rb") as file:
                file.seek(self.end)
                text = file.read()
        except OSError:
            self._restart()
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self.end += len(whole)
        return whole.split(b"\n")[:-1] if not self.damage else []
