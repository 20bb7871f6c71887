"""The clients of an experiment and its timeline, if it has a clock, described before anything is trained."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.core import buffered, keeps_own
from fedstale.engines import Serial
from fedstale.lab.build import make_task
from fedstale.lab.plan import plan
from fedstale.lab.schema import Experiment
from fedstale.simulate import Run
from fedstale.simulate.run import timeline_of
from fedstale.theory import heterogeneity


def describe(experiment: Experiment) -> dict[str, Any]:
    """How different the clients are, and of a clock hours, ages, lost work and who is never heard.

    The first algorithm and seed count: its timeline, and σ_g² and ‖∇F‖ at the model that it begins with.
    """
    p = plan(experiment, Path())[0]
    task, a = make_task(experiment.data, experiment.model.model_dump(), experiment.device), p.algorithm
    measurable = buffered(task) is None and keeps_own(task) is None
    differ = heterogeneity(task, task.init(p.seed), optima=math.nan, draws=100).numbers() if measurable else {}
    if p.clock is None:
        return {"clients": task.n, **differ}
    run = Run(Serial(task, a.local), a.strategy, p.participation, experiment.rounds, p.seed, clock=p.clock)
    rows = p.clock.within(timeline_of(run), experiment.rounds)
    counts, ages = np.zeros(task.n), np.concatenate([r.ages for r in rows])
    for r in rows:
        counts[r.clients] += 1
    return {
        "steps": len(rows),
        "clients": task.n,
        "hours": rows[-1].seconds / 3600,
        "arrivals": len(ages),
        "megabytes": sum(r.bytes_up + r.bytes_down for r in rows) / 1e6,
        "mean_age": float(ages.mean()) if len(ages) else 0.0,
        "oldest": int(ages.max(initial=0)),
        "lost_work": sum(r.lost for r in rows),
        "idle": float(np.mean([r.idle for r in rows])),
        "least_share": float(counts.min() / len(rows)),
        "never_heard": int((counts == 0).sum()),
        **differ,
    }
