"""`fedstale federation run`: submit the server's app, watch it, and submit it again after a crash.

Whether the server is alive is seen from the lock on its state, which ends with its process.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from fedstale.core import require
from fedstale.flower.federation.ops import control, keeper, processes
from fedstale.flower.federation.settings import Settings
from fedstale.flower.federation.state.manifest import committed_round, read_manifest
from fedstale.lab.runs.store import RunFolder

STARTUP = 90.0  # seconds that a submitted server may take to lock its state
GRACE = 5.0  # seconds after which the link is asked what has become of a server that has not locked its state
LOOK = 1.0  # seconds between looks at lock and manifest
PAUSE = 30.0  # seconds, the longest wait before a new try
TRIES = 6  # in a row without a committed round


class Event(NamedTuple):
    """Something that the operator is told: its kind, the round, and further words."""

    kind: str  # submitted, watching, round, crashed, done
    t: int
    text: str = ""


def alive(s: Settings) -> bool:
    """Whether a server uses the state."""
    return RunFolder(s.state).busy


def run(s: Settings, tries: int = TRIES) -> Iterator[Event]:
    """Train until the last round is committed. The pause after a crash doubles until a round is committed."""
    _check_state(s)
    keeper.keep_the_keeper()
    failed, goal = 0, s.file.rounds
    while (t := committed_round(s.state)) < goal:
        try:
            if processes.wanted(s.folder, "link"):  # started from this folder: with the keeper that starts it again
                keeper.ensure(s.folder)
            control.wait_until_ready(s)
            number = None if alive(s) else control.submit(s)  # `run` may have ended before its server
            yield Event("submitted", t, f"run {number}") if number else Event("watching", t)
            yield from _watch(s, number)
        except control.Refused as why:
            yield Event("crashed", t, str(why))
        if committed_round(s.state) >= goal:
            break
        failed = failed + 1 if committed_round(s.state) == t else 1
        require(failed < tries, f"round {t + 1} failed {tries} times in a row; {s.folder}/logs tells why")
        time.sleep(min(2.0 ** (failed - 1), PAUSE))
    yield Event("done", committed_round(s.state))


def _check_state(s: Settings) -> None:
    """Refuse the state of another configuration before any server is started for it."""
    manifest = read_manifest(s.state)
    run = str(manifest["run"]) if manifest else f"{s.run}-"
    same = run.startswith(f"{s.run}-")
    require(same, f"{s.state} belongs to another configuration ({run}, now {s.run}); use another folder")


def _watch(s: Settings, number: int | None) -> Iterator[Event]:
    """Report the rounds of a run until its server has ended; its number is not known to another `run`."""
    t, seen, began, why = committed_round(s.state), False, time.monotonic(), ""
    while not why:
        here, now = alive(s), committed_round(s.state)
        for done in range(t + 1, now + 1):
            yield Event("round", done)
        t, seen = now, seen or here
        if t >= s.file.rounds:
            return
        why = ("" if here else "is gone") if seen else _stillborn(s, number, time.monotonic() - began)
        time.sleep(LOOK)
    yield Event("crashed", t, f"run {number or ''} {why}")
    with suppress(control.Refused):
        if number:
            control.halt(s, number)


def _stillborn(s: Settings, number: int | None, waited: float) -> str:
    """Why a server that has not locked its state will never do it; empty as long as it may."""
    if waited > STARTUP:
        return f"has not begun after {STARTUP:g} s"
    status = ended = ""
    with suppress(control.Refused):  # the link may be on its way, too
        status, ended = control.run_state(s, number) if number and waited > GRACE else ("", "")
    if status == "finished":
        return f"ended before its first round: {ended}"
    if status in ("starting", "running") and not _has_app(s):
        time.sleep(LOOK)  # it may have been started just now
        return "" if _has_app(s) else "was killed before its first round"
    return ""


def _has_app(s: Settings) -> bool:
    """Whether the executor runs a server's app; an executor that is not ours may do so unseen."""
    executor = "link" + processes.EXECUTOR
    apps = ("flwr-serverapp" in processes.command(pid) for pid in processes.family(s.folder, executor))
    return not processes.wanted(s.folder, executor) or any(apps)
