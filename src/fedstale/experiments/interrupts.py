"""Ctrl-C and SIGTERM: a run stops after the round at hand, with a checkpoint."""

import os
import signal
from types import TracebackType


class Interrupted(Exception):
    """The runs were asked to stop; `--resume` continues them."""


class Stop:
    """Says whether the runs should stop, and is asked after every round.

    The first signal stops them after the round at hand, the second one ends the process at once. The handlers
    are installed on construction and, in a `with` block, removed at its end. A worker process that passes the
    id of its `parent` ends when that process is gone.
    """

    def __init__(self, parent: int | None = None) -> None:
        self.asked, self.parent = False, parent
        self.before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}

    def __enter__(self) -> "Stop":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _ask(self, *_: object) -> None:
        if self.asked:
            os._exit(130)
        self.asked = True

    def __call__(self) -> bool:
        if self.parent and os.getppid() != self.parent:  # nobody waits for the result
            os._exit(130)
        return self.asked
