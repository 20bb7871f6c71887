"""What all workers of a sweep need, loaded once before they are forked: importing this takes seconds."""

import gc

import fedstale.engines.auto
import fedstale.tasks.images
import fedstale.tasks.synthetic  # noqa: F401
from fedstale.engines.kernels import load

for kernel in (["linear"], ["dense"], ["rows", "float32"]):
    load(*kernel)  # from what numba has compiled before
gc.freeze()  # what is loaded is never collected: a look at it would copy it to every worker
