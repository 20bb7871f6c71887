"""`python -m tests.engines.kernels.compiled`: have numba compile the loops, for all processes that come later."""

import subprocess
import sys
from functools import partial

import numpy as np

from fedstale.core import Job, Local
from fedstale.engines.batched.engine import Batched
from fedstale.engines.kernels import load
from fedstale.tasks.models import MLP
from tests.engines.tasks_for_engines import images, vectors

LOCAL = Local(0.05, steps=2, batch=16)
TASKS = {"linear": vectors, "dense": partial(vectors, MLP((7,))), "convolutional": images}
CASES = {"rows": ("float32", "float16", "int8")}

HALVES = (["convolutional"], ["rows", "linear", "dense"])  # as long as each other; linear finds parts of the other


def compile_all() -> None:
    """Every loop, in two processes."""
    command = [sys.executable, "-m", "tests.engines.kernels.compiled"]
    made = [subprocess.Popen([*command, *half], stderr=subprocess.DEVNULL) for half in HALVES]
    for process in made:
        process.wait()


def compile_one(name: str) -> None:
    for case in CASES.get(name, ()):
        load(name, case)
    if name in TASKS:
        task = TASKS[name]()
        Batched(task, LOCAL).train([Job(task.init(0), np.arange(task.n), 0, 1, LOCAL)])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        compile_one(name)
    if not sys.argv[1:]:
        compile_all()
