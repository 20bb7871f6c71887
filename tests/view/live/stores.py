"""A small store of finished runs, and runs that seem to be computed, for the tests of the page."""

import json
from pathlib import Path
from typing import Any

from fedstale.lab import schema
from fedstale.lab.execute import execute
from fedstale.lab.plan import Planned, plan
from fedstale.lab.runs import store

EXPERIMENT: dict[str, Any] = {
    "name": "try",
    "rounds": 12,
    "seeds": [1, 2],
    "engine": "batched",
    "data": {"dataset": "digits", "clients": 6, "fraction": 0.2},
    "local": {"lr": 0.05, "steps": 1},
    "participation": {"kind": "two-groups", "p_min": 0.3},
    "algorithms": ["fedavg", "auto", {"kind": "mifa", "label": "<script>alert(1)</script>"}],
}


def computed(folder: Path, **changes: Any) -> list[Planned]:
    """Compute the experiment with these changes and return its runs."""
    e = schema.check(EXPERIMENT | changes)
    planned = plan(e, store.open_store(folder))
    for _ in execute(e, planned, command="fedstale run try.toml"):
        pass
    return planned


def unfinish(run: store.RunFolder, rounds: int) -> None:
    """Make a finished run one that was interrupted after so many rounds."""
    for name in ("result.json", "checksums.json"):
        (run.path / name).unlink()
    lines = (run.path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run.path / "metrics.jsonl").write_bytes(b"".join(lines[:rounds]))
    now = json.loads((run.path / "status.json").read_text())
    marks = [[0, 0.0], [rounds, 2.0]]
    (run.path / "status.json").write_text(json.dumps(now | {"round": rounds, "seconds": 2.0, "marks": marks}))
