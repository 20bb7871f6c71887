"""What `advise` learns from the arena: near cells count more, and the advice is tested on unseen cells."""

import math
from pathlib import Path

import numpy as np
import pytest

from fedstale.cli.arena import report
from fedstale.core import BadInput
from fedstale.lab.advise import rules
from fedstale.lab.advise.evidence import of_probs, of_table
from fedstale.lab.advise.lessons import FEATURES, Lesson, expected, features, held_out, likeness, plain, read, table
from fedstale.lab.advise.measures import measure
from fedstale.lab.advise.text import held_out_lines
from fedstale.lab.runs.store import write_csv
from tests.lab.arena.small_suite import finished


def lesson(cell: str, bias: float, **above: float) -> Lesson:
    """A cell that differs from others in its bias alone."""
    x = np.zeros(len(FEATURES))
    x[0] = bias
    return Lesson(cell, x, above)


CELLS = [
    lesson("even", 0.0, fedavg=0.0, auto=0.3, mifa=0.1, scaffold=0.2),
    lesson("nearly even", 0.1, fedavg=0.1, auto=0.2, mifa=0.15, scaffold=0.0),
    lesson("uneven", 0.9, fedavg=1.0, auto=0.0, mifa=0.2, scaffold=0.4),
    lesson("very uneven", 1.0, fedavg=2.0, auto=0.1, mifa=0.0, scaffold=0.4),
]


def test_a_distance_beyond_a_factor_of_two_makes_no_difference() -> None:
    cells = [lesson("near zero", 0.0, fedavg=3.0, mifa=0.8), lesson("usual", 0.0, fedavg=0.0, mifa=0.1)]
    found = expected(cells, cells[0].features, ["fedavg", "mifa"])
    assert [e.rule for e in found] == ["fedavg", "mifa"]
    assert found[0].above == pytest.approx(math.sqrt(2) - 1)


def test_cells_that_are_alike_count_more() -> None:
    x = CELLS[0].features
    far = np.array([0.0, 0.1, 0.9, 1.0]) / np.std([0.0, 0.1, 0.9, 1.0])
    w = np.exp(-(far**2) / 2)
    assert likeness(CELLS, x) == pytest.approx(w / w.sum())
    found = expected(CELLS, x, ["auto", "fedavg"])
    assert [e.rule for e in found] == ["fedavg", "auto"]
    assert found[1].above == pytest.approx(math.expm1(w @ [0.3, 0.2, 0.0, 0.1] / w.sum()))
    assert found[1].alike == pytest.approx(math.expm1(0.3))
    unknown = np.full(len(FEATURES), np.nan)
    assert likeness(CELLS, unknown) == pytest.approx([0.25] * 4), "nothing is known: all count alike"


def test_every_cell_is_advised_from_the_others() -> None:
    found = held_out(CELLS)
    rules_ = ["fedavg", "auto", "mifa"]  # SCAFFOLD asks more of the clients
    for k, advised in enumerate(found):
        others = CELLS[:k] + CELLS[k + 1 :]
        w = likeness(others, CELLS[k].features)
        means = [w @ [c.above[r] for c in others] for r in rules_]
        assert advised.advised == rules_[int(np.argmin(means))]
        assert advised.above == pytest.approx(math.expm1(CELLS[k].above[advised.advised]))
    assert [a.best for a in found] == ["fedavg", "scaffold", "auto", "mifa"]
    lines = [*held_out_lines(CELLS)]
    mean = math.expm1(np.mean([math.log1p(a.above) for a in found]))
    assert f"| the advice | {mean:.1%} |" in "\n".join(lines)
    assert lines[-1].startswith("| always `fedavg` |"), "the worst rule is last"
    with pytest.raises(BadInput, match="at least 2"):
        held_out(CELLS[:1])


def test_rules_that_ask_more_of_clients_are_only_hints() -> None:
    names = ["fedavg", "auto", "scaffold", "fedawe", "focus", "ca-fed", "fedpbc", "mifa"]
    assert plain(names) == ["fedavg", "auto", "mifa"]
    assert plain(names, memory=False) == ["fedavg"]
    m = measure(of_probs(np.array([1, 0.1]), None))
    cells = [lesson("one", 0.2, auto=0.1, mifa=0.2, fedavg=0.5, scaffold=0.0)]
    advice = rules.advise(m, True, cells)
    assert advice.entry == {"kind": "auto"}
    assert [hint.entry["kind"] for hint in advice.also] == ["mifa", "fedavg", "scaffold"]
    assert "10.5% above the best rule of the cell" in advice.why
    assert rules.advise(m, False, cells).entry["estimator"] == rules.LEARNT


def test_the_period_of_amplified_is_the_cycle() -> None:
    cells = [lesson("one", 0.0, amplified=0.0, fedavg=0.1)]
    turns = np.tile(np.repeat(np.eye(4, dtype=bool), 5, axis=0), (10, 1))
    cyclic, chance = of_table("turns", turns, None), of_probs(np.array([1, 0.1]), None)
    assert rules.advise(measure(cyclic), True, cells).entry == {"kind": "amplified", "period": 20, "factor": 2.0}
    assert rules.advise(measure(chance), True, cells).entry == {"kind": "fedavg"}


def test_visits_are_left_out_if_the_rounds_are_not_known() -> None:
    e = of_probs(np.array([1, 0.1]), None)
    assert np.isnan(features(measure(e), True)[4])
    assert features(measure(e._replace(planned=100)), True)[4] == pytest.approx(1.0)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", table(CELLS))
    again = read(tmp_path / "t.csv")
    assert [(a.cell, a.above) for a in again] == [(c.cell, c.above) for c in CELLS]
    assert np.array([a.features for a in again]) == pytest.approx(np.array([c.features for c in CELLS]))
    for text, message in (
        ("", "has no cells"),
        ("cell," + ",".join(FEATURES) + ",fedavgg\na,0,0,0,0,0,0,1\n", "fedavg"),
    ):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(BadInput, match=message):
            read(tmp_path / "bad.csv")
    with pytest.raises(BadInput, match="there is no table"):
        read(tmp_path / "missing.csv")


def test_a_contest_becomes_a_table(tmp_path: Path) -> None:
    record = finished(tmp_path / "contest")
    report(tmp_path / "contest", advice=tmp_path / "t.csv")
    found = read(tmp_path / "t.csv")
    assert [f.cell for f in found] == [c["name"] for c in record["cells"] if c["participation"] != "full"]
    assert {*found[0].above} == {"fedavg", "unbiased"}, "a label that is no recipe is left out"
    assert found[0].features[[0, 5]] == pytest.approx(features(measure(HALVES), True)[[0, 5]], abs=1e-3)
    assert found[1].features[5] == 0, "p was estimated there"


HALVES = of_probs(np.array([1, 1, 0.3, 0.3]), None)
