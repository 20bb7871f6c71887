"""Makes a pool, prints the numbers of its processes, waits, and leaves without closing it."""

import sys
import time

import numpy as np
from slow_tasks import LOCAL, Slow

from fedstale.core import Job
from fedstale.engines.pool import Pool

if __name__ == "__main__":
    task = Slow(0.0)
    pool = Pool(task, LOCAL, workers=2)
    pool.train([Job(task.init(0), np.arange(6), 0, 1, LOCAL)])
    print(*(worker.process.pid for worker in pool._crew), flush=True)
    time.sleep(float(sys.argv[1]))
