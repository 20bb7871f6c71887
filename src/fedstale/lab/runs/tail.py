"""The metrics of a run that may still grow: read on from where the last reading ended, and thinned if need be.

Up to MOST lines are kept as they are. Of a longer run every second, fourth, … line is kept, and beside them the
evaluated ones where these are the smaller part.
"""

import re
from collections.abc import Iterator
from typing import Any

from fedstale.core import BadInput
from fedstale.lab.runs.checks import require_whole
from fedstale.lab.runs.metrics import METRICS
from fedstale.lab.runs.store import RunFolder, metrics_line

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
