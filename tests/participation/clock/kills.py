"""Kill asynchronous runs at random and resume them: `python -m tests.participation.clock.kills --kills 20`.

Each time a process computes a run of a rule without rounds, and is killed by SIGKILL after a random time; it is
resumed until a process ends by itself. Metrics and parameters must have the bytes of a run that was never
stopped.
"""

import argparse
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

from fedstale.lab.execute import execute
from fedstale.lab.plan import plan
from fedstale.lab.runs import store
from fedstale.lab.schema import check

RULES = ("ace", "auto", "fedbuff", "fedasync", "fadas", "fedvarp")
RAW = {
    "name": "kills", "rounds": 150, "engine": "serial",
    "data": {"dataset": "quadratic", "clients": 12, "noise": 0.1},
    "local": {"lr": 0.05, "steps": 2}, "participation": {"kind": "two-groups", "p_min": 0.3}, "evaluate_every": 10,
    "clock": {"round_seconds": 20.0, "pace": {"kind": "buffer", "size": 3, "concurrency": 6}},
}  # fmt: skip


def _play(rule: str, out: Path) -> None:
    experiment = check(RAW | {"algorithms": [rule]})
    for _ in execute(experiment, plan(experiment, store.open_store(out)), resume=True, checkpoint_seconds=0.01):
        pass


def _files(out: Path) -> dict[str, bytes]:
    return {
        f"{p.parent.name}/{p.name}": p.read_bytes()
        for n in ("metrics.jsonl", "params.npy")
        for p in out.glob(f"*/{n}")
    }


def _killed(rule: str, out: Path, after: float) -> bool:
    """Compute in a process that is killed after so many seconds; whether it was, before its end."""
    if (child := os.fork()) == 0:
        threading.Timer(after, os.kill, [os.getpid(), signal.SIGKILL]).start()
        _play(rule, out)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def trial(rule: str, folder: Path, rng: random.Random) -> tuple[int, bool]:
    """How often a run was killed, at least once, and whether it has the bytes of an undisturbed one."""
    start = time.monotonic()
    _play(rule, folder / "whole")
    took, kills = time.monotonic() - start, 0
    while kills == 0 or rng.random() < 0.3:
        kills += _killed(rule, folder / "broken", rng.uniform(0.05, 0.9) * took)
        if kills == 0:  # it was faster this time
            shutil.rmtree(folder / "broken")
    _play(rule, folder / "broken")
    return kills, _files(folder / "broken") == _files(folder / "whole") != {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given, done, same = parser.parse_args(), 0, 0
    rng = random.Random(given.seed)
    print(f"seed {given.seed}")
    while done < given.kills:
        rule = rng.choice(RULES)
        with tempfile.TemporaryDirectory() as folder:
            kills, equal = trial(rule, Path(folder), rng)
        done, same = done + kills, same + kills * equal
        print(f"{rule}: killed {kills} times, {'the same bytes' if equal else 'OTHER BYTES'}", flush=True)
    print(f"{same} of {done} kills were resumed to the same bytes")


if __name__ == "__main__":
    main()
