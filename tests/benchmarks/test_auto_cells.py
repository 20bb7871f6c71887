"""The cells that `auto` was chosen with: a short one, and the file of results."""

from pathlib import Path

import auto_cells as cells
import pytest


def test_with_everybody_there_all_forms_of_the_rule_are_fedavg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = cells.CELLS["fresh"]["everybody"]._replace(rounds=10, rates=(0.3, 0.3))
    monkeypatch.setitem(cells.CELLS["fresh"], "everybody", cell)
    rules, store = (
        ["fedavg", "auto", "p as given", "no doubt", "m = 0", "β = 1"],
        cells.Store(tmp_path / "cells.jsonl"),
    )
    store.fill("fresh", ["everybody"], rules, [1])
    ends = [store.best("fresh", "everybody", rule, 1)[0] for rule in rules]
    assert ends == pytest.approx(ends[:1] * len(rules), rel=1e-4)
    assert cells.Store(store.file) == store
    cells.report(store, "fresh", ["everybody"], rules, [1])
