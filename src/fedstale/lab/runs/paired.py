"""The results of two algorithms side by side, tested over the seeds that both have."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedstale.lab.runs import metrics
from fedstale.lab.runs.metrics import Metric
from fedstale.lab.runs.pairing import Pair
from fedstale.lab.runs.query import Group, Run
from fedstale.lab.runs.statistics import paired_test, spread, uncertainty

VERDICTS = {1: "B is better", -1: "A is better", 0: "cannot be told from chance"}


def result(pair: Pair) -> dict[str, Any]:
    """Both means and the difference B - A over the common seeds, of everything that both were evaluated on."""
    left, right = ({r.seed: r for r in side.group.runs} for side in pair)
    seeds = sorted(left.keys() & right.keys())
    same = [s for s in seeds if _mark(left[s]) is not None and _mark(left[s]) == _mark(right[s])]
    return {
        "a": pair.a.group.label,
        "b": pair.b.group.label,
        "rounds": pair.a.config.get("rounds"),
        "seeds_a": sorted(left),
        "seeds_b": sorted(right),
        "common_seeds": seeds,
        "identical_seeds": same,
        "metrics": [
            {"name": m.name, "which": which} | _tested(m, which, pair, seeds)
            for m in metrics.evaluated(*(side.group.runs[0].result or {} for side in pair))
            for which in ("last10", "final")
        ],
    }


def _mark(run: Run) -> str | None:
    return (run.result or {}).get("fingerprint")


def _tested(m: Metric, which: str, pair: Pair, seeds: Sequence[int]) -> dict[str, Any]:
    a, b = (_values(side.group, m.name, which) for side in pair)
    found: dict[str, Any] = {k: spread(list(v.values()))._asdict() for k, v in (("a", a), ("b", b))}
    seeds = [s for s in seeds if s in a and s in b]
    if not seeds:
        return found | {"difference": None, "verdict": "not tested: no seed in common"}
    difference = np.array([b[s] - a[s] for s in seeds], np.float64)
    found["difference"] = float(difference.mean())
    if len(seeds) < 2:
        return found | {"verdict": "not tested: one common seed alone proves nothing"}
    room = uncertainty(difference)
    better = paired_test(difference if m.higher_is_better else -difference)
    verdict = VERDICTS[better] if difference.any() else "equal"
    return found | {"interval": [found["difference"] - room, found["difference"] + room], "verdict": verdict}


def _values(group: Group, name: str, which: str) -> dict[int, float]:
    return {r.seed: float(r.result[name][which]) for r in group.runs if r.result and name in r.result}
