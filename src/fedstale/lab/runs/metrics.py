"""The metrics of a run: their names, labels, units and directions, the most important one first.

Tables, pictures, the report and `fedstale compare` show every number that a task's `evaluate` returns. A line in
METRICS says how: its label, unit and direction, and its place among the others.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, SupportsFloat

from fedstale.core import known

OBJECTIVE = "objective"  # F(w) = Σ a_i F_i(w): learning rates are chosen, and rules ranked, by the least of it
WINDOWS = {"final": "last round", "last10": "mean of the last 10", "best": "best round"}  # what a result keeps

LISTED = 1024  # clients up to which every round names those heard from, and each is evaluated at the end
TRACED = 256  # clients up to which realised weights are recorded: they cost n × n
SPELLED = ("AUC", "MSE", "RMSE", "MAE", "MAPE", "WER", "CER", "ECE", "NLL", "IoU", "mIoU")  # in titles
# Of scores of other samples than the test samples, or at another point than the parameters.
PREFIXES = {"validation_": "validation", "held_out_": "held-out", "own_": "own point's"}


class Metric(NamedTuple):
    """A number that a task evaluates; `name` is its key in metrics.jsonl and result.json."""

    name: str
    label: str
    higher_is_better: bool = False
    percent: bool = False  # a share of 1, shown as a percentage
    shown: bool = True  # in tables and pictures; else only in CSV files, JSON and `compare`

    @property
    def own(self) -> bool:
        """Whether it is a metric of the user's, which nothing here knows."""
        return self.name not in {m.name for m in METRICS}

    @property
    def scale(self) -> float:
        """The factor from the stored number to the one that is shown."""
        return 100.0 if self.percent else 1.0

    @property
    def title(self) -> str:
        """The label as the beginning of a sentence: `Test accuracy`, `Validation IoU`."""
        spelled = {word.lower(): word for word in SPELLED}
        label = re.sub(r"\w+", lambda word: spelled.get(word[0], word[0]), self.label)
        return label if label.startswith(SPELLED) else label[:1].upper() + label[1:]

    @property
    def axis(self) -> str:
        """The label of an axis that shows scaled numbers."""
        return self.label + (" (%)" if self.percent else "")

    def best(self, values: Iterable[float]) -> float:
        return max(values) if self.higher_is_better else min(values)

    def score(self, value: float) -> float:
        """The value with a sign such that more is better."""
        return value if self.higher_is_better else -value

    def text(self, value: float | None, std: float | None = None) -> str:
        """`93.41 ± 0.20 %` of a percentage, `0.1234 ± 0.002` of anything else, `–` of nothing."""
        if value is None or not math.isfinite(value):
            return "–"
        if self.percent:
            return f"{100 * value:.2f} ± {percent(std, 2)}" if std is not None else percent(value, 2)
        return plain(value, 4) + ("" if std is None else f" ± {plain(std, 1)}")


def percent(share: SupportsFloat, digits: int = 1) -> str:
    """`5.0 %`, `–` of what is not finite."""
    value = round(100 * float(share), digits) + 0.0  # no -0.0
    return f"{value:.{digits}f} %" if math.isfinite(value) else "–"


def plain(value: float, digits: int) -> str:
    """So many digits that count; up to a million without an exponent: 1350 and not 1.35e+03."""
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e+" in text and abs(value) < 1e6 else text


METRICS = (
    Metric("accuracy", "test accuracy", higher_is_better=True, percent=True),
    Metric("held_out_accuracy", "accuracy on held-out clients", higher_is_better=True, percent=True),
    *(Metric(name, name, higher_is_better=True) for name in ("f1", "auc", "precision", "recall", "r2")),
    *(
        Metric(name, name)
        for name in ("mse", "rmse", "mae", "mape", "perplexity", "wer", "cer", "ece", "brier", "nll")
    ),
    Metric("distance", "distance to the optimum"),
    Metric(OBJECTIVE, "training objective"),
    Metric("loss", "test loss", shown=False),
    Metric("held_out_loss", "loss on held-out clients", shown=False),
    Metric("validation_accuracy", "validation accuracy", higher_is_better=True, percent=True, shown=False),
    Metric("validation_loss", "validation loss", shown=False),
    Metric("variance", "variance", shown=False),
    Metric("diversity", "how the clients' gradients differ, σ_g²"),
    Metric("gap", "how far clients are from their best on average, Γ"),
    Metric("largest_gap", "how far the worst client is from its best, Γ'"),
    Metric("gradient", "‖∇F(w)‖", shown=False),
    Metric("epsilon", "largest ε"),
    *(Metric(name, name, shown=False) for name in ("w1", "w2")),  # where a run of two parameters is
)
IDS, NUMBERS, NUMBER, COUNT = (
    (list, int), (list, int, float, type(None)), (None, int, float, type(None)), (None, int),
)  # fmt: skip
# Of a line, not evaluated: whether each is a list, and of which types its values are.
ROUND_KEYS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("round", "available", "participants", "refused", "clipped"), COUNT),
    **dict.fromkeys(("heard_weight", "train_loss", "step_norm", "beta", "bytes_up", "bytes_down"), NUMBER),
    **dict.fromkeys(("seconds", "lost_work", "idle"), NUMBER),
    **dict.fromkeys(("heard", "not_selected", "lost", "excluded", "ages"), IDS),
    **dict.fromkeys(("staleness", "weights"), NUMBERS),
    "warnings": (None, dict),
}
NAMES = dict.fromkeys((m.name for m in METRICS), NUMBER) | ROUND_KEYS
OF_FEDERATION = dict.fromkeys(("refused", "idle"), IDS)  # other things in its lines, which say who was asked
RESULT_KEYS = ("rounds", "refused", "warnings", "stopped", "evaluated_clients", "fingerprint", "seconds",
               "rounds_per_second", "bytes_up", "bytes_down", "clock")  # of a result  # fmt: skip


def metric(name: str) -> Metric:
    """The metric called `name`; `accuracy_exit_2` is an accuracy, and of an unknown one more is better.

    Less is better where the name ends in `loss` or `error`.
    """
    known = {m.name for m in METRICS}
    prefix = next((p for p in PREFIXES if name.startswith(p) and name not in known), "")
    if prefix:  # a metric of one's own, of other samples
        inner = metric(name.removeprefix(prefix))
        return inner._replace(name=name, label=f"{PREFIXES[prefix]} {inner.label}")
    base, exit_, number = name.partition("_exit_")
    unknown = Metric(base, base.replace("_", " "), higher_is_better=not base.endswith(("loss", "error")))
    found = next((m for m in METRICS if m.name == base), unknown)
    return found._replace(name=name, label=f"{found.label}, exit {number}") if exit_ else found


def evaluated(*results: Collection[str]) -> list[Metric]:
    """The metrics that all of the results (or lines of metrics) have, the most important first.

    Those of unknown name come last; the accuracies of single exits are left out.
    """
    names = {m.name: m for m in METRICS}
    first = dict.fromkeys(results[0] if results else ())
    others = [k for k in first if k not in (*names, *ROUND_KEYS, *RESULT_KEYS) and "_exit_" not in k]
    found = [*METRICS, *map(metric, others)]
    return [m for m in found if results and all(m.name in result for result in results)]


def shown(*results: Collection[str], main: str | None = None) -> list[Metric]:
    """Those of them that belong in tables and pictures; the first is the main one, which may be given."""
    found = [m for m in evaluated(*results) if m.shown or m.name == main]
    return sorted(found, key=lambda m: m.name != main)


def monitored(values: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The metric that a run watches: a given one, else the main one, of validation if it can; or none."""
    found, main = {m.name: m for m in evaluated(values)}, config.get("main")
    if config.get("monitor") is not None:
        return known(config["monitor"], found, "monitor") if found else ""
    names = [name for name in found if name.startswith("validation_")] + [m.name for m in shown(values)]
    return next((n for n in (names if main is None else (f"validation_{main}", main)) if n in found), "")
