"""Processes that can be killed and begin with all imports done: forks of a server that a worker starts once."""

import io
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "fedstale.cli.run",
        "fedstale.cli.reproduce",
        "fedstale.cli.arena",
        "fedstale.tasks.supervised",
        "pytest",
    ]
)


class Fork:
    """A Python program in a process of its own: `with Fork(file, *words) as fork: fork.kill()`."""

    def __init__(self, program: Path, *words: object, cwd: Path | None = None) -> None:
        ours, theirs = FORKS.Pipe(duplex=False)
        descriptor, name = tempfile.mkstemp()
        os.close(descriptor)
        self.errors = Path(name)
        given = (program, [*map(str, words)], cwd or Path.cwd(), {**os.environ}, theirs, self.errors)
        self.process = FORKS.Process(target=_play, args=given, daemon=False)
        self.process.start()
        theirs.close()
        with ours:
            self.stdout: io.TextIOBase = os.fdopen(os.dup(ours.fileno()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        self.process.join()
        self.process.close()
        self.stdout.close()
        self.errors.unlink()

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process.pid and self.process.is_alive():
            os.kill(self.process.pid, number)

    def ended(self) -> subprocess.CompletedProcess[str]:
        """How the process ended, after it has."""
        printed = self.stdout.read()
        self.process.join(600)
        code = self.process.exitcode
        assert code is not None, "the process does not end"
        return subprocess.CompletedProcess([], code, printed, self.errors.read_text())


def forked(program: Path, *words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The program's output and exit code, when it has ended by itself."""
    with Fork(program, *words, cwd=cwd) as fork:
        return fork.ended()


def _play(program: Path, words: list[str], cwd: Path, env: dict[str, str], out: Connection, err: Path) -> None:
    os.dup2(out.fileno(), 1)
    os.dup2(os.open(err, os.O_WRONLY | os.O_APPEND), 2)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = [str(program), *words]
    sys.path.insert(0, str(program.parent))
    runpy.run_path(str(program), run_name="__main__")


DOOMED = """
import os, sys, threading
from fedstale.__main__ import main
from fedstale.lab.runs.store import RunFolder
how, left, pause = int(sys.argv.pop(1)), int(sys.argv.pop(1)), float(sys.argv.pop(1))
opened = RunFolder.open_metrics
class Doomed:
    def __init__(self, file):
        self.file = file
    def write(self, line):
        global left
        left -= 1
        if left == 0 and pause:
            threading.Timer(pause, os.kill, [os.getpid(), how]).start()
        elif left == 0:
            os.kill(os.getpid(), how)
        return self.file.write(line)
    def __getattr__(self, name):
        return getattr(self.file, name)
RunFolder.open_metrics = lambda folder, rounds: Doomed(opened(folder, rounds))
main()
"""  # the command, which sends itself a signal at this line of metrics, or a pause after it


def doomed(folder: Path) -> Path:
    """The program of `DOOMED`: its first words are the signal, the number of lines and a pause in seconds."""
    path = folder / "doomed.py"
    path.write_text(DOOMED)
    return path
