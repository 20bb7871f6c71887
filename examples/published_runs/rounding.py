"""How far rounding alone moves a published run: repeats it from starts that differ in their last bits.

    python rounding.py FOLDER uniform-carbon-budget fedvarp 5    # FOLDER as of main.py

Every parameter of the start is changed by a relative 1.2e-7, up or down, which is a unit in the last place of
float32. Data, minibatches and clients are the same in all runs.
"""

import argparse
from pathlib import Path

import numpy as np
from main import LOCAL, RULES, SERVER, published, task_of

import fedstale as fs


def nudged(task, draw):
    """The task with a start that differs in its last bits."""
    start = task.init(0)
    start *= 1 + draw.choice(np.array([-1.2e-7, 1.2e-7], np.float32), start.shape)
    task.init = lambda seed: start.copy()
    return task


def main(folder, availability, rule, times):
    """Prints the accuracy after the last round: the published one, then that of each start."""
    ((alpha, curves),) = [(a, curves) for (name, a), curves in published(folder).items() if name == availability]
    print(f"{availability}, {rule}: published {curves[rule][-1]:.4f}")
    process = fs.Trace(folder / "matrices" / f"{availability}.csv", clients_first=True)
    available = process.recording()  # (rounds, n)
    for k in range(1, times + 1):
        task = nudged(task_of(available.shape[1], alpha, available, "torch"), np.random.default_rng(k))
        engine = fs.Serial(task, LOCAL)
        *_, last = fs.simulate(engine, RULES[rule], process, rounds=len(available), seed=12, server=SERVER)
        print(f"start {k}: {task.evaluate(last.params)['accuracy']:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("availability")
    parser.add_argument("rule", choices=RULES)
    parser.add_argument("times", type=int)
    main(**vars(parser.parse_args()))
