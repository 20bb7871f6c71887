"""How well the clients that come often are served, and those that come rarely."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import BadInput
from fedstale.lab.runs import metrics, query
from fedstale.lab.runs.metrics import OBJECTIVE, Metric, metric
from fedstale.lab.runs.query import HEARD, Line
from fedstale.lab.runs.store import RunFolder

UNEVEN = 0.5  # the rare half comes at most so much as often as the other one, or there are no halves to speak of


class Halves(NamedTuple):
    """Mean final score of the clients that were heard from often, and of the rare half, and which score it is."""

    often: float
    rare: float
    by: Metric = metric("accuracy")


def compared_by(names: Collection[str], values: Mapping[str, Any], main: str | None) -> Metric | None:
    """The score that clients are compared by, of those evaluated: the main one if each has it, or the test loss."""
    wanted = [*(m for m in metrics.shown(names, main=main) if m.name != OBJECTIVE), metric("loss")]
    return next((m for m in wanted if np.isfinite(np.array(values.get(m.name, []), np.float64)).any()), None)


def halves(runs: Sequence[tuple[RunFolder, Sequence[Line]]]) -> Halves | None:
    """Mean over these runs, each with its metrics; None where clients come about equally often or have no score."""
    found = [one for folder, lines in runs if (one := _of_run(folder, lines))]
    if not found or len(found) < len(runs):
        return None
    return Halves(float(np.mean([h.often for h in found])), float(np.mean([h.rare for h in found])), found[0].by)


def _of_run(folder: RunFolder, lines: Sequence[Line]) -> Halves | None:
    try:
        values, named = folder.clients(), query.names_clients(lines)
        by = compared_by(lines[-1], values, folder.config().get("main"))
        scores = np.array(values[by.name] if by else [], np.float64)
        share = (query.presence(folder.config(), lines) == HEARD).mean(axis=1) if named else None
    except (BadInput, ValueError, IndexError):  # what is damaged is not drawn
        return None
    if share is None or by is None or len(scores) != len(share) or len(scores) < 2:
        return None
    order = np.argsort(share, kind="stable")
    rare, often = order[: len(order) // 2], order[(len(order) + 1) // 2 :]
    known = np.isfinite(scores[rare]).any() and np.isfinite(scores[often]).any()
    if not known or share[rare].mean() > UNEVEN * share[often].mean():
        return None
    return Halves(float(np.nanmean(scores[often])), float(np.nanmean(scores[rare])), by)
