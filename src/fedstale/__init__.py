"""Federated learning for clients that come and go.

    import fedstale as fs

    task = fs.Quadratic.random(n=24, d=10, noise=0.1)
    engine = fs.Serial(task, fs.Local(lr=0.05))
    for s in fs.simulate(engine, fs.FedStale(beta=0.5), fs.TwoGroups(p_min=0.1), rounds=200, seed=1):
        print(s.t, len(s.clients), task.evaluate(s.params))

Importing this loads numpy only; tasks with neural networks load torch when they are first used.
"""

from fedstale import testing
from fedstale.channels import Lossless
from fedstale.core import (
    Availability,
    BadInput,
    Checkpoint,
    Job,
    Local,
    Reply,
    Round,
    Snapshot,
    part,
)
from fedstale.engines import Serial
from fedstale.estimators import Intervals, Known
from fedstale.memory import Memory
from fedstale.participation import Bernoulli, Trace, TwoGroups
from fedstale.recipes import Recipe, recipe
from fedstale.rng import stream
from fedstale.servers import Adam, Momentum, Sgd
from fedstale.simulate import Diverged, Run, play, simulate, together
from fedstale.strategies import MIFA, FedAvg, FedStale, FedVARP, Unbiased
from fedstale.tasks.quadratic import Quadratic

__version__ = "0.1.0"

__all__ = [
    "MIFA",
    "Adam",
    "Availability",
    "BadInput",
    "Bernoulli",
    "Checkpoint",
    "Diverged",
    "FedAvg",
    "FedStale",
    "FedVARP",
    "Intervals",
    "Job",
    "Known",
    "Local",
    "Lossless",
    "Memory",
    "Momentum",
    "Quadratic",
    "Recipe",
    "Reply",
    "Round",
    "Run",
    "Serial",
    "Sgd",
    "Snapshot",
    "Trace",
    "TwoGroups",
    "Unbiased",
    "part",
    "play",
    "recipe",
    "simulate",
    "stream",
    "testing",
    "together",
]
