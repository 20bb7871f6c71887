"""Federated learning for clients that come and go.

    import fedstale as fs

    task = fs.Quadratic.random(n=24, d=10, noise=0.1)
    engine = fs.Serial(task, fs.Local(lr=0.05))
    for s in fs.simulate(engine, fs.FedStale(beta=0.5), fs.TwoGroups(p_min=0.1), rounds=200, seed=1):
        print(s.t, len(s.clients), task.evaluate(s.params))

Here is what a short script writes; everything else is in a room such as `fs.strategies` or `fs.participation`, and
records and protocols are in `fs.core`. `import fedstale` loads numpy only; what needs torch loads it on first use.
"""

from typing import TYPE_CHECKING, Any

from fedstale.core import BadInput, Local, moved, part
from fedstale.core.abilities import evaluate
from fedstale.core.moved import on_first_use
from fedstale.core.rng import stream
from fedstale.engines import Serial
from fedstale.engines import make as engine
from fedstale.lab.runs.frames import clients, metrics, runs
from fedstale.participation import Bernoulli, Log, Trace, TwoGroups
from fedstale.participation.clock import Clock
from fedstale.participation.estimators import Intervals
from fedstale.privacy.ledger import Privacy
from fedstale.registry import recipe
from fedstale.simulate import Diverged, Run, play, simulate, together
from fedstale.simulate.servers import Sgd
from fedstale.strategies import FedAvg, FedStale, SelfTuning, Unbiased
from fedstale.tasks.quadratic import Quadratic

from fedstale import (  # isort: skip
    channels, core, data, defence, engines, fed_cis, lab, memory, participation, privacy, registry, strategies,
    tasks, testing, theory,
)  # fmt: skip
from fedstale.core import schedules  # isort: skip
from fedstale.participation import clock, estimators  # isort: skip
from fedstale.simulate import servers  # isort: skip

if TYPE_CHECKING:  # the same names as in ON_FIRST_USE, for type checkers and editors
    from fedstale.lab.compare import Comparison, compare, record
    from fedstale.lab.execute import execute
    from fedstale.lab.plan import plan
    from fedstale.lab.schema import read as read_experiment
    from fedstale.tasks import models
    from fedstale.tasks.images import image_task
    from fedstale.tasks.supervised import Supervised
    from fedstale.tasks.synthetic import synthetic
    from fedstale.view.plots.pictures import plot
    from fedstale.view.trackers.follow import log_runs

__version__ = "0.2.0"
moved.keep_old_names()

ON_FIRST_USE = {  # public name → where it lives: what needs torch, pydantic or another large package
    "Comparison": "fedstale.lab.compare:Comparison",
    "Supervised": "fedstale.tasks.supervised:Supervised",
    "compare": "fedstale.lab.compare:compare",
    "execute": "fedstale.lab.execute:execute",
    "image_task": "fedstale.tasks.images:image_task",
    "log_runs": "fedstale.view.trackers.follow:log_runs",
    "models": "fedstale.tasks.models",
    "plan": "fedstale.lab.plan:plan",
    "plot": "fedstale.view.plots.pictures:plot",
    "record": "fedstale.lab.compare:record",
    "read_experiment": "fedstale.lab.schema:read",
    "synthetic": "fedstale.tasks.synthetic:synthetic",
}

__all__ = [
    "BadInput", "Bernoulli", "Clock", "Comparison", "Diverged", "FedAvg", "FedStale", "Intervals", "Local", "Log",
    "Privacy", "Quadratic", "Run", "SelfTuning", "Serial", "Sgd", "Supervised", "Trace", "TwoGroups", "Unbiased",
    "channels", "clients", "clock", "compare", "core", "data", "defence", "engine", "engines", "estimators",
    "evaluate", "execute", "fed_cis", "image_task", "lab", "log_runs", "memory", "metrics", "models", "part",
    "participation", "plan", "play", "plot", "privacy", "read_experiment", "recipe", "record", "registry", "runs",
    "schedules", "servers", "simulate", "strategies", "stream", "synthetic", "tasks", "testing", "theory",
    "together",
]  # fmt: skip
_load = on_first_use(__name__, ON_FIRST_USE)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


if not TYPE_CHECKING:  # else a type checker would believe in every name

    def __getattr__(name: str) -> Any:
        return _load(name) if name in ON_FIRST_USE else moved.old_name(name)
