"""The command line, called or in a process of its own, and a small experiment for it."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from fedstale import __main__

QUADRATIC = """
rounds = 60
seeds = [1, 2]
algorithms = ["fedavg", {kind = "fedstale", beta = 0.8}, "fedau"]
[data]
dataset = "quadratic"
clients = 8
dimension = 5
noise = 0.1
[local]
lr = 0.05
[participation]
kind = "two-groups"
p_min = 0.3
"""
MAIN = Path(__main__.__file__)  # the command as a program
COMMAND = [sys.executable, "-m", "fedstale"]
Done = subprocess.CompletedProcess[str]


def fedstale(*words: object, cwd: Path | None = None) -> Done:
    """`fedstale WORDS` in this process, which saves seconds of imports; the process is left as it was."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with _as_it_was(), contextlib.chdir(cwd or "."):
        sys.argv = ["fedstale", *map(str, words)]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                __main__.main()
            except SystemExit as end:
                code = int(end.code or 0)
    return subprocess.CompletedProcess([*words], code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """What a command changes for its whole process is put back."""
    words, path, environment = sys.argv, [*sys.path], {**os.environ}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        with warnings.catch_warnings():
            warnings.resetwarnings()  # as in a new process: a warning is said, not raised
            for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
                warnings.simplefilter("ignore", kind)
            yield
    finally:
        sys.argv, sys.path[:] = words, path
        os.environ.clear()
        os.environ.update(environment)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def process(*words: object, cwd: Path | None = None) -> Done:
    """`fedstale WORDS` in a process of its own, for what the process itself does."""
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=600, cwd=cwd)
