"""Makes a pool, prints the numbers of its processes and leaves without closing it, or trains until it is killed."""

import sys
import time
from pathlib import Path
from threading import Thread

import numpy as np

from fedstale.core import Job
from fedstale.engines.processes.pool import Pool
from tests.engines.slow_tasks import LOCAL, Slow


def main(pause: float, mark: Path) -> None:
    task = Slow(pause, str(mark))
    pool = Pool(task, LOCAL, workers=2)
    job = Job(task.init(0), np.arange(6), 0, 1, LOCAL)
    training = Thread(target=pool.train, args=([job],), daemon=True)
    training.start()
    while not mark.exists():
        time.sleep(0.01)
    print(*(worker.process.pid for worker in pool._workers), flush=True)
    training.join()


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]))
