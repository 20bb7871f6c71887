"""A cluster of two nodes on this machine, of which one is lost in the middle of a round. Says what came of it."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import fedstale as fs
from fedstale.core import Engine
from fedstale.engines import Serial
from fedstale.engines.ray.cluster import ALONE, QUIET
from tests.engines.slow_tasks import LOCAL, Held, Slow

os.environ.update(QUIET | ALONE)

from ray.cluster_utils import Cluster

from fedstale.engines.ray.engine import Ray


def run(engine: Engine) -> Iterator[bytes]:
    for s in fs.simulate(engine, fs.FedStale(0.5), fs.TwoGroups(p_min=0.8), rounds=3, seed=1):
        yield s.params.tobytes()


def main(mark: Path) -> None:
    wanted = list(run(Serial(Slow(0.0), LOCAL)))
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    other, hold = nodes.add_node(num_cpus=1), mark.with_name("hold")

    def lose() -> None:
        while len({*mark.read_text().split()}) < 2:  # until both nodes train
            time.sleep(0.01)
        nodes.remove_node(other, allow_graceful=False)
        hold.unlink()

    with Ray(Held(mark, hold), LOCAL, address=nodes.address) as engine:
        print("two nodes" if engine.workers == 2 else f"{engine.workers} actors")
        rounds = run(engine)
        bits = [next(rounds)]
        mark.write_text("")
        hold.touch()
        thief = Thread(target=lose)
        thief.start()
        bits += rounds
        thief.join()
        print("same bits" if bits == wanted else "other bits")
        print("one lost" if [unit for _, unit in engine._team.busy.values()] == [None] else "none lost")
        nodes.add_node(num_cpus=1)
        end = time.monotonic() + 600.0
        while engine._team.busy and time.monotonic() < end:
            bits = list(run(engine))
        print("same bits" if bits == wanted else "other bits")
        print("none new" if engine._team.busy else "one new")
    nodes.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
