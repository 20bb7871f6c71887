"""Federated learning for clients that come and go.

    import fedstale as fs

    task = fs.Quadratic.random(n=24, d=10, noise=0.1)
    engine = fs.Serial(task, fs.Local(lr=0.05))
    for s in fs.simulate(engine, fs.FedStale(beta=0.5), fs.TwoGroups(p_min=0.1), rounds=200, seed=1):
        print(s.t, len(s.clients), task.evaluate(s.params))

Importing this loads numpy only; tasks with neural networks load torch when they are first used.
"""

from fedstale import testing
from fedstale.channels import GilbertElliott, Loss, Lossless, Packets
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
from fedstale.estimators import BetaBernoulli, Intervals, Known, Transitions
from fedstale.fed_cis.sampling import ExitSampling
from fedstale.memory import Float16, Float32, Int8, Memory
from fedstale.participation import (
    Bernoulli,
    ClusteredMarkov,
    Cyclic,
    Diurnal,
    Events,
    Grid,
    LabelTied,
    Markov,
    MarkovClasses,
    RegularisedSampling,
    Sampling,
    Trace,
    TwoGroups,
)
from fedstale.registry import Recipe, recipe
from fedstale.rng import stream
from fedstale.servers import Adam, Momentum, Projection, Sgd, Yogi
from fedstale.simulate import Diverged, Run, play, simulate, together
from fedstale.strategies import (
    F3AST,
    MIFA,
    UDMA,
    AdaFed,
    Amplified,
    CAFed,
    FedAvg,
    FedStale,
    FedVARP,
    MoreAvailable,
    Scaffold,
    Unbiased,
    Wait,
)
from fedstale.tasks.quadratic import Quadratic

__version__ = "0.1.0"

__all__ = [
    "F3AST",
    "MIFA",
    "UDMA",
    "AdaFed",
    "Adam",
    "Amplified",
    "Availability",
    "BadInput",
    "Bernoulli",
    "BetaBernoulli",
    "CAFed",
    "Checkpoint",
    "ClusteredMarkov",
    "Cyclic",
    "Diurnal",
    "Diverged",
    "Events",
    "ExitSampling",
    "FedAvg",
    "FedStale",
    "FedVARP",
    "Float16",
    "Float32",
    "GilbertElliott",
    "Grid",
    "Int8",
    "Intervals",
    "Job",
    "Known",
    "LabelTied",
    "Local",
    "Loss",
    "Lossless",
    "Markov",
    "MarkovClasses",
    "Memory",
    "Momentum",
    "MoreAvailable",
    "Packets",
    "Projection",
    "Quadratic",
    "Recipe",
    "RegularisedSampling",
    "Reply",
    "Round",
    "Run",
    "Sampling",
    "Scaffold",
    "Serial",
    "Sgd",
    "Snapshot",
    "Trace",
    "Transitions",
    "TwoGroups",
    "Unbiased",
    "Wait",
    "Yogi",
    "part",
    "play",
    "recipe",
    "simulate",
    "stream",
    "testing",
    "together",
]
