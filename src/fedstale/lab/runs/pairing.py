"""Which algorithms of two folders are compared with each other, and the tests over the seeds that both have."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import BadInput, known, require
from fedstale.lab.runs import metrics, named, query
from fedstale.lab.runs.metrics import Metric
from fedstale.lab.runs.query import Group, Run, Setting
from fedstale.lab.runs.statistics import paired_test, spread, uncertainty
from fedstale.lab.runs.store import canonical


class Side(NamedTuple):
    """One algorithm in one setting."""

    setting: Setting
    group: Group

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that all seeds share."""
        return {k: v for k, v in self.group.config.items() if k != "seed"}


class Pair(NamedTuple):
    """Two algorithms that are compared with each other."""

    a: Side
    b: Side


def sides(spec: str) -> list[Side]:
    """The algorithms that a folder, or FOLDER:NAME, names; see `_named` for what a name may be."""
    place, colon, label = spec.rpartition(":")
    cuts = [k for k, c in enumerate(spec) if c == ":" and Path(spec[:k]).exists()]  # a label may have colons
    if cuts:
        place, label = spec[: cuts[0]], spec[cuts[0] + 1 :]
    if Path(spec).exists() or not colon:
        place, label = spec, ""
    runs = named.find(Path(place)).runs
    require(len(runs) > 0, f"{place} has no runs to compare, only a recorded participation")
    found = [Side(s, g) for s in query.settings(runs) for g in s.groups if g.runs]
    require(len(found) > 0, f"{spec} has no finished run; the same command with --resume goes on with it")
    return _named(label, found, f"the label in {place}") if label else found


def _named(name: str, found: Sequence[Side], what: str) -> list[Side]:
    """The algorithms with this label, else of this label or kind whatever the case, if that is one algorithm."""
    labels = dict.fromkeys(side.group.label for side in found)
    if name not in labels:
        wanted = name.lower()
        alike = {
            s.group.label
            for s in found
            if wanted in (s.group.label.lower(), s.config["label"].lower(), s.config["strategy"]["kind"].lower())
        }
        require(len(alike) < 2, f"{what} {name!r} could be {' or '.join(sorted(alike))}: name one of these")
        name = next(iter(alike), name)
    known(name, labels, what)
    return [side for side in found if side.group.label == name]


def matched(a: Sequence[Side], b: Sequence[Side], names: tuple[str, str]) -> list[Pair]:
    """Who is compared with whom: one with one, else the same label in the same setting, label, or setting."""
    keys: list[Callable[[Side], str]] = [
        lambda s: canonical(s.setting.config) + s.group.label,
        lambda s: s.group.label,
        lambda s: canonical(s.setting.config),
    ]
    if len(a) == len(b) == 1:
        return [Pair(a[0], b[0])]
    for key in keys:
        left, right = ({key(s): s for s in some} for some in (a, b))
        if len(left) == len(a) and len(right) == len(b) and (both := [k for k in left if k in right]):
            return [Pair(left[k], right[k]) for k in both]
    labels = [", ".join(dict.fromkeys(s.group.label for s in some)) for some in (a, b)]
    raise BadInput(
        f"{names[0]} and {names[1]} have nothing that can be paired: name one algorithm of each as FOLDER:NAME; "
        f"A has {labels[0][:200]}; B has {labels[1][:200]}"
    )


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
    a, b = (
        {r.seed: float(r.result[m.name][which]) for r in side.group.runs if r.result and m.name in r.result}
        for side in pair
    )
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


def texts(row: Mapping[str, Any]) -> list[str]:
    """A row of `metrics` in words: what it is about, both means, the difference with its interval, the verdict."""
    m = metrics.metric(row["name"])
    sides = [m.text(row[side]["mean"], row[side]["std"] or None) for side in "ab"]
    difference = "–" if row["difference"] is None else f"{m.scale * row['difference']:+.4g}"
    if np.isfinite(ends := row.get("interval", [math.nan])).all():
        difference += f" [{', '.join(f'{m.scale * end:+.3g}' for end in ends)}]"
    return [f"{m.label}, {metrics.WINDOWS[row['which']]}", *sides, difference, row["verdict"]]
