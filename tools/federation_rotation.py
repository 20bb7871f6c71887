"""Rotate keys while a federation trains: `python -m tools.federation_rotation --times 3`.

A federation on the loopback, with TLS and keys, trains quadratics. Between rounds and within them every client is
given another key, and then commands another token and the link another certificate, so many times. What must hold:
every committed round stays committed, the next one comes within a minute, the old token and the old keys are worth
nothing, and the end is that of a simulation with the participation that was recorded.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fedstale.cli import federation as cli
from fedstale.core import require
from fedstale.flower.federation import settings
from fedstale.flower.federation.ops import launcher
from fedstale.flower.federation.ops.gate import control_token
from fedstale.flower.federation.ops.keys import expiry, public_hash
from fedstale.flower.federation.server.diagnostics import trace
from fedstale.flower.federation.state import roster
from fedstale.flower.federation.state.manifest import read_metrics
from tools.federation_chaos import CLIENTS, Watch, heard_all, prepare, replayed

ROUNDS = 2  # from one rotation to the next


def secrets_of(s: settings.Settings) -> dict[str, str]:
    """What can be rotated, as it is now."""
    own = s.folder / "keys"
    keys = {f"client {k}": public_hash(own / f"client-{k}.pub") for k in range(CLIENTS)}
    known = {f"client {m.id}": m.key for m in roster.read(s.roster).members}
    require(keys == known, f"the roster must have the keys of the clients, {keys}, got {known}")
    return keys | {"token": control_token(s.folder), "certificate": (own / "server.pem").read_text()}


def rotations(folder: Path) -> dict[str, Callable[[], None]]:
    """Name of a secret → what replaces it."""
    clients = {f"client {k}": partial(cli.rotate, folder, client=k) for k in range(CLIENTS)}
    return clients | {
        "token": lambda: cli.rotate(folder, token=True),
        "certificate": lambda: cli.rotate(folder, certificate=True),
    }


def trained(folder: Path, times: int) -> dict[str, Any]:
    """Rotate everything so many times; raises if anything that must hold does not."""
    s = prepare(folder, rounds=10**6)
    began, done = time.monotonic(), 0
    try:
        launcher.start_run(s)
        watch = Watch(s)

        def play(rounds: int) -> None:
            end = watch.t + rounds
            while watch.t < end or not heard_all(s):
                time.sleep(0.25)
                watch.look()

        play(ROUNDS)
        for _ in range(times):
            for name, rotate in rotations(folder).items():
                before = secrets_of(s)
                rotate()
                watch.disturbed = time.monotonic()
                after = secrets_of(s)
                changed = [key for key in after if after[key] != before[key]]
                require(changed == [name], f"{name} must be another, and nothing else, got {changed}")
                done += 1
                play(ROUNDS)
    finally:
        launcher.stop_all(s, patience=2.0, hard=True)
    lines = read_metrics(s.state)
    missing = sorted(set(range(1, watch.t + 1)) - {line["round"] for line in lines})
    require(
        lines[-1]["fingerprint"] == replayed(s), "the end is not that of the simulation with this participation"
    )
    return {
        "rotations": done, "rounds": len(lines), "lost rounds": len(missing), "void rounds": lines[-1]["voids"],
        "rounds without one of the clients": int((~trace(lines)[1]).any(axis=1).sum()),
        "longest from a rotation to a round (s)": round(watch.outage, 1),
        "seconds": round(time.monotonic() - began), "certificate until": f"{expiry(folder / 'keys/server.pem'):%F}",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, help="rotations of each secret")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for key, value in trained(Path(folder) / "federation", chosen.times).items():
            print(f"{key}: {value}")


if __name__ == "__main__":
    main()
