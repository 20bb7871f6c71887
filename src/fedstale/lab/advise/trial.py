"""A shortlist of rules on the user's own experiment: the experiment to simulate, and the ranking of its runs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedstale.core import require
from fedstale.lab.advise.evidence import Evidence
from fedstale.lab.advise.measures import VISITS, Measures
from fedstale.lab.advise.rules import LEARNT, Advice
from fedstale.lab.plan import Planned, by_label
from fedstale.lab.runs import store
from fedstale.lab.runs.metrics import OBJECTIVE, percent
from fedstale.lab.runs.statistics import difference, paired_test, spread, tenth
from fedstale.lab.schema import Experiment

SHORTLIST = ("fedavg", "unbiased", "fedvarp", "fedstale", "mifa", "auto", "auto-unbiased")
ROUNDS = 200  # simulated at most, unless --rounds says more


def shortlisted(e: Experiment, known: Evidence, a: Advice, rounds: int | None, seeds: list[int]) -> Experiment:
    """The experiment with the advised rule, what else it suggests and the usual rules, on a small budget."""
    named = {name: {"kind": name} for name in (a.entry["kind"], *SHORTLIST)}
    for own in (*(hint.entry for hint in a.also), a.entry):  # their settings, but the same estimator for all
        named[own["kind"]] = {**own, "label": own["kind"]}
        named[own["kind"]].pop("estimator", None)
    rules = list(named.values())
    rounds = min(e.rounds, ROUNDS) if rounds is None else rounds
    require(rounds >= 1, f"rounds must be at least 1, got {rounds}")
    changes: dict[str, Any] = {"algorithms": rules, "rounds": rounds, "seeds": seeds, "warmup": None}
    if not known.known:
        changes["estimator"] = LEARNT
    engine = "auto" if e.engine == "serial" else e.engine  # the reference is slow
    return e.model_copy(update=changes | {"engine": engine, "evaluate_every": None, "grid": {}, "tune": {}})


def rank(e: Experiment, planned: Sequence[Planned], m: Measures, a: Advice) -> dict[str, Any]:
    """The rules of a simulated experiment in order, and what follows for the advice."""
    scores = {label: [score(p.folder) for p in runs] for label, runs in by_label(planned).items()}
    rows, kind = ranking(scores), a.entry["kind"]
    few = e.rounds < m.enough_rounds
    return {"rounds": e.rounds, "seeds": e.seeds, "engine": e.engine, "advised": kind, "ranking": rows,
            "verdict": verdict(rows, kind, len(e.seeds), few), "cautions": cautions(e, m)}  # fmt: skip


def score(folder: store.RunFolder) -> dict[str, float]:
    """Mean objective of the last 10 rounds, test accuracy likewise, and that of the worst tenth of the clients."""
    if not folder.finished:
        return {}
    result = folder.result()
    found = {str(name): float(result[name]["last10"]) for name in (OBJECTIVE, "accuracy") if name in result}
    each = sorted(x for x in folder.clients().get("accuracy", []) if x is not None)
    return found | ({"worst_tenth": float(np.mean(each[: tenth(len(each))]))} if each else {})


def ranking(scores: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Rows by mean objective; rules share a place if a paired t-test (5 %, one-sided) cannot tell them apart."""
    values = {name: np.array([-s.get(OBJECTIVE, np.inf) for s in of]) for name, of in scores.items()}
    order = sorted(values, key=lambda name: -float(values[name].mean()))
    rows: list[dict[str, Any]] = []
    top, place = order[0], 1
    for k, name in enumerate(order):
        if paired_test(difference(values[top], values[name])) > 0:  # the other is worse beyond chance
            top, place = name, k + 1
        rows.append({"place": place, "rule": name, **averages(scores[name])})
    best = rows[0].get("objective")
    for row in rows:  # in shares of the best objective, where that is a share of anything
        known = best is not None and best > 0 and "objective" in row
        row["behind"] = row["objective"] / best - 1 if known else None
    return rows


def averages(scores: list[dict[str, float]]) -> dict[str, Any]:
    """Means over the seeds, or only how many seeds diverged."""
    diverged = sum(not s for s in scores)
    if diverged:
        return {"diverged": diverged}
    ends = {key: spread([s[key] for s in scores]) for key in scores[0]}
    std = ends[OBJECTIVE].std if len(scores) > 1 else None
    return {**{key: end.mean for key, end in ends.items()}, "objective_std": std, "diverged": 0}


def verdict(rows: list[dict[str, Any]], advised: str, seeds: int, few: bool) -> str:
    """What the ranking says about the advised rule; too few rounds do not overrule the advice."""
    if rows[0]["diverged"]:
        return "Every rule diverged: use a smaller learning rate."
    if seeds < 2:
        return "One seed proves nothing: add seeds."
    first = [row["rule"] for row in rows if row["place"] == 1]
    if advised not in first:
        behind = next(row["behind"] for row in rows if row["rule"] == advised)
        far = "diverged" if behind is None else f"is {percent(behind)} behind {first[0]}"
        then = "add rounds before you decide" if few else f"take {first[0]}, if your training is like this"
        return f"Here {advised} {far}: {then}."
    if len(first) == 1:
        return f"{advised} is the best here, beyond chance."
    return f"{advised} is among the {len(first)} best, which cannot be told apart."


def cautions(e: Experiment, m: Measures) -> list[str]:
    """Reasons not to trust a simulation too much."""
    found = []
    if e.rounds < m.enough_rounds:
        seen = f"{e.rounds / m.least_rounds:.1f} visits of the rarest client, not {VISITS}"
        found.append(f"{e.rounds} rounds are {seen}: more rounds may change the order")
    if isinstance(e.participation, dict) and e.participation.get("kind") in ("trace", "log", "events", "grid"):
        found.append("every seed replays the same recording: chance is that of the training only")
    return found
