"""Makes an engine on a Ray of its own and leaves without closing it, or sleeps until it is killed."""

import sys
import time

import numpy as np

from fedstale.core import Job
from fedstale.engines.ray.engine import Ray
from tests.engines.slow_tasks import LOCAL, Slow

if __name__ == "__main__":
    task = Slow(0.0)
    engine = Ray(task, LOCAL, workers=2)
    engine.train([Job(task.init(0), np.arange(6), 0, 1, LOCAL)])
    print("trained", flush=True)
    sys.stdin.readline()
    time.sleep(float(sys.argv[1]))
