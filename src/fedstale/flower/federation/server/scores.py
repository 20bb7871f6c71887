"""Federated evaluation: how good the model is on the clients' own held-out samples, as they say."""

from typing import Any

from fedstale.flower.federation.protocol.exchange import Outcome


def scores(outcome: Outcome, weights: dict[int, float]) -> dict[str, Any]:
    """The keys of a line of metrics: who was evaluated, and Σ a_i x_i / Σ a_i of accuracy and loss over them."""
    told = {i: (float(a.update[0]), a.loss) for i, a in sorted(outcome.accepted.items())}
    told = {i: (accuracy, loss) for i, (accuracy, loss) in told.items() if accuracy <= 1}  # else it is none
    sure = {i: accuracy for i, (accuracy, _) in told.items() if accuracy >= 0}  # -1: none
    losses = {i: loss for i, (_, loss) in told.items()}
    return {"evaluated": [*told], "accuracy": _mean(sure, weights), "test_loss": _mean(losses, weights)}


def _mean(values: dict[int, float], weights: dict[int, float]) -> float | None:
    total = sum(weights[i] for i in values)
    return round(sum(weights[i] * x for i, x in values.items()) / total, 6) if total > 0 else None
