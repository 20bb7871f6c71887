"""Stop and resume runs from the page, which is allowed by `--control` alone."""

import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedstale.core import require
from fedstale.view.live.index import Row

COMMANDS = ("run", "reproduce", "arena")  # of fedstale, that compute runs and take --resume
LOG = "resumed.log"  # in the store: what the resumed commands print


class Command(NamedTuple):
    """What computed a run, and in which folder."""

    line: str
    folder: str
    store: Path


class Control:
    """Stops and resumes runs for those who have its token."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(16)
        self.started: dict[Command, subprocess.Popen[bytes]] = {}

    def may(self, token: str) -> bool:
        """Whether this is the token."""
        return secrets.compare_digest(token.encode(), self.token.encode())

    def stop(self, rows: Sequence[Row]) -> str:
        """Ask the processes that compute these runs to stop, each with a checkpoint."""
        running = [row for row in rows if row.state == "running"]
        require(bool(running), "there is no running run to stop")
        for row in running:
            row.folder.ask_stop()
        return "asked to stop after the round at hand"

    def resume(self, rows: Sequence[Row]) -> str:
        """Start the commands that computed the interrupted runs again, with --resume."""
        found = dict.fromkeys(_command(row) for row in rows if row.state == "interrupted")
        require(bool(found), "there is no interrupted run to resume")
        for command in found:
            before = self.started.get(command)
            require(before is None or before.poll() is not None, f"{command.line} is being resumed already")
        for command in found:
            self.started[command] = _start(command)
        return f"resumed: {'; '.join(command.line for command in found)}"

    def trouble(self, rows: Sequence[Row]) -> list[str]:
        """How the resumed commands of these runs failed, if they did."""
        stores = {row.folder.path.parent for row in rows}
        failed = [c for c, process in self.started.items() if c.store in stores and process.poll()]
        return [f"{c.line} --resume ended: {_last(c.store / LOG)}" for c in failed]


def _command(row: Row) -> Command:
    """What computed a run; refused if another user has written its store: its files say what code is run."""
    where, store = row.folder.environment(), row.folder.path.parent
    own = all(path.stat().st_uid == os.getuid() for path in (store, row.folder.path, *row.folder.path.iterdir()))
    line = f"`{str(where.get('command', ''))[:200]} --resume` in {str(where.get('folder', ''))[:200]}"
    why = f"{store} was written by another user, and resuming its runs executes the code that its files name"
    require(own, f"{why}: if you trust it, run {line} yourself")
    return Command(str(where.get("command", "")), str(where.get("folder", "")), store)


def _start(command: Command) -> "subprocess.Popen[bytes]":
    """The command in a process of its own, which outlives the page; no shell, and no command but ours."""
    words = _words(command.line)
    ok = len(words) > 1 and words[0] == "fedstale" and words[1] in COMMANDS
    require(ok, f"only `fedstale {'`, `fedstale '.join(COMMANDS)}` can be resumed here, got {command.line[:80]!r}")
    known = bool(command.folder) and Path(command.folder).is_dir()
    require(known, f"the folder in which {command.line} was started is not known or not there any more")
    resume = [] if "--resume" in words else ["--resume"]
    with (command.store / LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "fedstale", *words[1:], *resume], cwd=command.folder,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return []


def _last(log: Path) -> str:
    """The last line that was printed."""
    try:
        lines = log.read_text(errors="replace").split("\n")
    except OSError:
        lines = []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
