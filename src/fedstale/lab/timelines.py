"""The timeline of an experiment with a clock, described before anything is trained."""

from pathlib import Path
from typing import Any

import numpy as np

from fedstale.core import BadInput, hooks_of
from fedstale.engines import Serial
from fedstale.lab.build import make_task
from fedstale.lab.plan import plan
from fedstale.lab.schema import Experiment
from fedstale.simulate import Run
from fedstale.simulate.timing import load_of, timeline_of


def describe(experiment: Experiment) -> dict[str, Any]:
    """Hours, ages, lost work and who is never heard, in the timeline of the first algorithm and seed."""
    p = plan(experiment, Path())[0]
    if p.clock is None:
        what = "a .toml with a [clock] or a recorded participation, such as a table of 0 and 1"
        raise BadInput(f"inspect needs {what}; {experiment.name} has no [clock]")
    task, a = make_task(experiment.data, experiment.model.model_dump(), experiment.device), p.algorithm
    run = Run(Serial(task, a.local), a.strategy, p.participation, experiment.rounds, p.seed, clock=p.clock)
    rows = p.clock.within(timeline_of(run, load_of(run, hooks_of(a.strategy))), experiment.rounds)
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
    }
