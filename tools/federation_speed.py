"""Seconds per round of clients that stay loaded and of isolated ones: `python -m tools.federation_speed`.

Both ways take turns in one federation on the loopback, with TLS and keys, whose clients have almost nothing to
calculate. The first round after each change is left out, because clients load their app in it. The end must have
the bits of a simulation with the recorded participation.
"""

import argparse
import re
import tempfile
from pathlib import Path
from statistics import median

from fedstale.cli import federation as cli
from fedstale.core import require
from fedstale.flower.federation import settings
from fedstale.flower.federation.ops import launcher, runner
from fedstale.flower.federation.state.manifest import read_metrics
from tools import federation_chaos as chaos

WAYS = ("join", "join --isolated")


def measured(folder: Path, blocks: int, rounds: int) -> dict[str, list[float]]:
    """The seconds of the rounds of each way; `rounds` count in each of the blocks."""
    s, found = chaos.prepare(folder, rounds=1), {way: list[float]() for way in WAYS}
    clients = list(range(chaos.CLIENTS))
    try:
        for block in range(2 * blocks):
            way = WAYS[block % 2]
            cli.leave(folder, clients)
            cli.join(folder, clients, isolated=way != "join", foreground=False)
            s = _longer(folder, (block + 1) * (rounds + 1))
            for _ in runner.run(s):
                pass
            found[way] += [line["seconds"] for line in read_metrics(s.state)[-rounds:]]
            print(f"{way}: {found[way][-rounds:]}", flush=True)
    finally:
        launcher.stop_all(s)
    same = read_metrics(s.state)[-1]["fingerprint"] == chaos.replayed(s)
    require(same, "the end is not that of a simulation with the same participation")
    return found


def _longer(folder: Path, rounds: int) -> settings.Settings:
    file = folder / "federation.toml"
    file.write_text(re.sub(r"(?m)^rounds = \d+", f"rounds = {rounds}", file.read_text()))
    return settings.read(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=3, help="of each way")
    parser.add_argument("--rounds", type=int, default=5, help="that count in each block")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder) / "federation", chosen.blocks, chosen.rounds)
    for way, seconds in found.items():
        print(f"{way}: median {median(seconds):.2f} s per round, {min(seconds):.2f} to {max(seconds):.2f}")
    print(f"ratio {median(found[WAYS[0]]) / median(found[WAYS[1]]):.2f}")


if __name__ == "__main__":
    main()
