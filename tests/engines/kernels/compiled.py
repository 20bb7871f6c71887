"""`python -m tests.engines.kernels.compiled linear …`: have numba compile loops for other processes."""

import sys

import numpy as np

from fedstale.core import Job, Local
from fedstale.engines.batched.engine import Batched
from fedstale.engines.kernels import load
from tests.engines.tasks_for_engines import images, vectors

LOCAL = Local(0.05, steps=2, batch=16)
TASKS = {"linear": vectors, "convolutional": images}
CASES = {"rows": ("float32", "float16", "int8")}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        for case in CASES.get(name, ()):
            load(name, case)
        if name in TASKS:
            task = TASKS[name]()
            Batched(task, LOCAL).train([Job(task.init(0), np.arange(task.n), 0, 1, LOCAL)])
