"""Federated learning for clients that come and go.

    import fedstale as fs

    task = fs.Quadratic.random(n=24, d=10, noise=0.1)
    engine = fs.Serial(task, fs.Local(lr=0.05))
    for s in fs.simulate(engine, fs.FedStale(beta=0.5), fs.TwoGroups(p_min=0.1), rounds=200, seed=1):
        print(s.t, len(s.clients), task.evaluate(s.params))

All public names are here. `import fedstale` loads numpy only; a name that needs torch loads it on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedstale import channels, clock, data, fed_cis, participation, registry, strategies, testing, theory
from fedstale.channels import *  # noqa: F403
from fedstale.clock import Clock
from fedstale.core import moved, protocols
from fedstale.core.protocols import *  # noqa: F403
from fedstale.defence import Defence, Liars
from fedstale.engines import Serial
from fedstale.engines import make as engine
from fedstale.estimators import BetaBernoulli, Intervals, Known, Transitions
from fedstale.evaluation import evaluate
from fedstale.fed_cis.sampling import ExitSampling
from fedstale.lab.runs.frames import clients, metrics, runs
from fedstale.memory import Float16, Float32, Int8, Memory
from fedstale.participation import *  # noqa: F403
from fedstale.privacy.ledger import Privacy
from fedstale.registry import Recipe, recipe
from fedstale.rng import stream
from fedstale.schedules import Cosine, StepDecay, UniformSteps, Warmup
from fedstale.servers import Adam, Momentum, Projection, Sgd, Yogi
from fedstale.simulate import Diverged, Run, play, simulate, together
from fedstale.strategies import *  # noqa: F403
from fedstale.tasks.quadratic import Quadratic

from fedstale.core import (  # isort: skip
    Array, Availability, BadInput, Checkpoint, Clients, Closes, CountsSamples, DescribesModel, DrawsByRound,
    EstimatesMixing, ExplainsItself, Floats, HasBeta, HasBuffers, HasClusters, HasDevice, HasExcluded, HasOptima,
    HasSlots, Hooks, Ids, Job, KeepsOwn, Local, Mask, Mixes, NarrowsEvaluation, Reply, Round, RunsLoops,
    SavesItself, Schedule, ScoresClients, Snapshot, StepsTogether, WarmsUp, WithTruth, Work, Workload, Wrapped,
    hooks_of, part,
)  # fmt: skip

if TYPE_CHECKING:  # the same names as in ON_FIRST_USE, for type checkers and editors
    from fedstale.engines.auto import Auto
    from fedstale.engines.batched.engine import Batched
    from fedstale.engines.processes.pool import Pool
    from fedstale.engines.ray.engine import Ray
    from fedstale.fed_cis.networks import EarlyExit, ExitCNN, ExitResNet18
    from fedstale.fed_cis.task import early_exit_task
    from fedstale.lab.compare import Comparison, compare, record
    from fedstale.lab.execute import execute
    from fedstale.lab.plan import plan
    from fedstale.lab.runs.store import RunFolder
    from fedstale.lab.schema import read as read_experiment
    from fedstale.tasks import models
    from fedstale.tasks.images import image_task
    from fedstale.tasks.split import Split
    from fedstale.tasks.supervised import Supervised
    from fedstale.tasks.synthetic import synthetic
    from fedstale.view.plots.comparison import plot
    from fedstale.view.trackers.follow import log_runs

__version__ = "0.2.0"
moved.keep_old_names()

ON_FIRST_USE = {  # public name → where it lives: what needs torch, pydantic or another large package
    "Auto": "fedstale.engines.auto:Auto",
    "Comparison": "fedstale.lab.compare:Comparison",
    "Batched": "fedstale.engines.batched.engine:Batched",
    "EarlyExit": "fedstale.fed_cis.networks:EarlyExit",
    "ExitCNN": "fedstale.fed_cis.networks:ExitCNN",
    "ExitResNet18": "fedstale.fed_cis.networks:ExitResNet18",
    "Pool": "fedstale.engines.processes.pool:Pool",
    "Ray": "fedstale.engines.ray.engine:Ray",
    "RunFolder": "fedstale.lab.runs.store:RunFolder",
    "Split": "fedstale.tasks.split:Split",
    "Supervised": "fedstale.tasks.supervised:Supervised",
    "compare": "fedstale.lab.compare:compare",
    "early_exit_task": "fedstale.fed_cis.task:early_exit_task",
    "execute": "fedstale.lab.execute:execute",
    "image_task": "fedstale.tasks.images:image_task",
    "log_runs": "fedstale.view.trackers.follow:log_runs",
    "models": "fedstale.tasks.models",
    "plan": "fedstale.lab.plan:plan",
    "plot": "fedstale.view.plots.comparison:plot",
    "record": "fedstale.lab.compare:record",
    "read_experiment": "fedstale.lab.schema:read",
    "synthetic": "fedstale.tasks.synthetic:synthetic",
}

__all__ = [  # and all names of the rooms below
    "Adam", "Array", "Auto", "Availability", "BadInput", "Batched", "BetaBernoulli", "Checkpoint", "Clients",
    "Clock", "Closes", "Comparison", "Cosine", "CountsSamples", "Defence", "DescribesModel", "Diverged",
    "DrawsByRound", "EarlyExit", "EstimatesMixing", "ExitCNN", "ExitResNet18", "ExitSampling", "ExplainsItself",
    "Float16", "Float32", "Floats", "HasBeta", "HasBuffers", "HasClusters", "HasDevice", "HasExcluded",
    "HasOptima", "HasSlots", "Hooks", "Ids", "Int8", "Intervals", "Job", "KeepsOwn", "Known", "Liars", "Local",
    "Mask", "Memory", "Mixes", "Momentum", "NarrowsEvaluation", "Pool", "Privacy", "Projection", "Quadratic", "Ray",
    "Recipe", "Reply", "Round", "Run", "RunFolder", "RunsLoops", "SavesItself", "Schedule", "ScoresClients",
    "Serial", "Sgd", "Snapshot", "Split", "StepDecay", "StepsTogether", "Supervised", "Transitions",
    "UniformSteps", "WarmsUp", "Warmup", "WithTruth", "Work", "Workload", "Wrapped", "Yogi", "clients", "clock",
    "compare", "data", "early_exit_task", "engine", "evaluate", "execute", "fed_cis", "hooks_of", "image_task",
    "log_runs", "metrics", "models", "part", "plan", "play", "plot", "read_experiment", "recipe", "record",
    "registry", "runs", "simulate", "stream", "synthetic", "testing", "theory", "together",
]  # fmt: skip
__all__ += channels.__all__
__all__ += participation.__all__
__all__ += protocols.__all__
__all__ += strategies.__all__


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


if not TYPE_CHECKING:  # else a type checker would believe in every name

    def __getattr__(name: str) -> Any:
        if name in moved.ABILITIES:
            return moved.old_ability(name)
        if name not in ON_FIRST_USE:
            raise AttributeError(f"module 'fedstale' has no attribute {name!r}")
        home, _, attribute = ON_FIRST_USE[name].partition(":")
        module = import_module(home)
        globals()[name] = found = getattr(module, attribute) if attribute else module
        return found
