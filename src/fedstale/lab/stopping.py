"""Early stopping: a run ends when a metric has reached a target, or has not improved for some rounds.

The decision follows from the lines of metrics alone, so that a resumed run stops where one that was never
interrupted does.
"""

from collections.abc import Mapping
from typing import Any

from fedstale.lab.runs import metrics


class Stopping:
    """Watches the evaluated rounds of one run; `why` says why the run stops, and is empty until it does."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.patience, self.target = config.get("patience"), config.get("target")
        self.config = config
        self.best, self.since, self.why = -float("inf"), 0, ""

    @property
    def asked(self) -> bool:
        """Whether the run may stop early at all."""
        return self.patience is not None or self.target is not None

    def see(self, line: Mapping[str, Any]) -> None:
        """Take note of a line of metrics, if its round was evaluated."""
        name = metrics.monitored(line, self.config)
        if not (name and self.asked) or self.why:
            return
        m, t, value = metrics.metric(name), line["round"], line[name]
        if m.score(value) > self.best:
            self.best, self.since = m.score(value), t
        if self.target is not None and m.score(value) >= m.score(self.target):
            self.why = f"{name} {m.text(value)} reached the target {m.text(self.target)} in round {t}"
        elif self.patience is not None and t - self.since >= self.patience:
            self.why = (
                f"{name} did not improve on {m.text(m.score(self.best))} of round {self.since} until round {t}"
            )
