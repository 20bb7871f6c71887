"""Count the modules of the package that a command or a script walks through: `python -m tools.walk`.

A module counts if one of its functions is called; what runs while a module is imported does not.
"""

import contextlib
import io
import sys
import tempfile
import threading
from collections.abc import Callable
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

import fedstale as fs
from fedstale.cli.app import main

ROOT = str(Path(fs.__file__).parent)


def walked(play: Callable[[], object]) -> set[str]:
    """The files of the package with a function that `play` calls, in any thread."""
    found: set[str] = set()

    def see(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not (code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(ROOT)):
            return
        above: FrameType | None = frame
        while above is not None:
            if above.f_code.co_name == "<module>" and above.f_code.co_filename.startswith(ROOT):
                return
            above = above.f_back
        found.add(code.co_filename[len(ROOT) + 1 :])

    threading.setprofile(see)
    sys.setprofile(see)
    try:
        play()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def readme() -> None:
    """The first example of the README, with few rounds."""
    task = fs.Quadratic.random(n=24, d=10, spread=3.0, noise=0.1)
    engine = fs.engine("auto", task, fs.Local(lr=0.005, steps=5))
    for strategy in (fs.FedAvg(), fs.FedStale(beta=0.9)):
        *_, last = fs.simulate(engine, strategy, fs.TwoGroups(p_min=0.1), rounds=20, seed=1)
        task.evaluate(last.params)


def demo() -> None:
    """`fedstale run demo`, with one seed."""
    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
        sys.argv = ["fedstale", "run", "demo", "-c", "rounds=12", "--seeds", "1", "--out", out]
        with contextlib.suppress(SystemExit):
            main()


if __name__ == "__main__":
    for name, play in (("README", readme), ("run demo", demo)):
        modules = walked(play)
        print(f"{name}: {len(modules)} modules", *sorted(modules), sep="\n  ")
