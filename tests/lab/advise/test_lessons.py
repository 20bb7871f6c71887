"""What `advise` learns from the arena: near cells count more, and the advice is tested on unseen cells."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstale.cli.arena import report
from fedstale.core import BadInput
from fedstale.lab.advise import rules
from fedstale.lab.advise.evidence import of_probs, of_table
from fedstale.lab.advise.lessons import (
    FEATURES,
    Lesson,
    Policy,
    case,
    choose,
    expected,
    features,
    held_out,
    likeness,
    plain,
    policy,
    read,
    table,
)
from fedstale.lab.advise.measures import measure
from fedstale.lab.advise.text import held_out_lines
from fedstale.lab.runs.store import write_csv
from tests.lab.arena.small_suite import finished


def lesson(cell: str, bias: float, seen: float = 2.0, **missing: float) -> Lesson:
    """A cell that differs from others in its bias, and in how often a client is seen (a power of ten)."""
    x = np.zeros(len(FEATURES))
    x[0], x[FEATURES.index("seen")] = bias, seen
    return Lesson(cell, x, missing)


CELLS = [
    lesson("a little uneven", 0.2, fedavg=0.0, auto=0.3, mifa=0.1, scaffold=0.2),
    lesson("more uneven", 0.3, fedavg=0.1, auto=0.2, mifa=0.15, scaffold=0.0),
    lesson("uneven", 0.9, fedavg=0.6, auto=0.0, mifa=0.2, scaffold=0.4),
    lesson("very uneven", 1.0, fedavg=0.9, auto=0.1, mifa=0.0, scaffold=0.4),
]
RULES = ["fedavg", "auto", "mifa"]  # SCAFFOLD asks more of the clients
EVEN, RARE = lesson("even", 0.0).features, lesson("rare", 0.5, seen=0.2).features


def test_cells_that_are_alike_count_more() -> None:
    x, biases = CELLS[0].features, np.array([0.2, 0.3, 0.9, 1.0])
    w = np.exp(-(((biases - 0.2) / np.std(biases)) ** 2) / 2)
    assert likeness(CELLS, x) == pytest.approx(w / w.sum())
    found = expected(CELLS, x, ["auto", "fedavg"])
    assert [e.rule for e in found] == ["fedavg", "auto"]
    assert found[1].missing == pytest.approx(w @ [0.3, 0.2, 0.0, 0.1] / w.sum())
    assert found[1].alike == 0.3
    unknown = np.full(len(FEATURES), np.nan)
    assert likeness(CELLS, unknown) == pytest.approx([0.25] * 4), "nothing is known: all count alike"


def test_every_cell_is_advised_from_the_others() -> None:
    found = held_out(CELLS)
    assert policy(CELLS, RULES) == (True, True)
    for k, advised in enumerate(found):
        others = CELLS[:k] + CELLS[k + 1 :]
        w = likeness(others, CELLS[k].features)
        means = [w @ [c.missing[r] for c in others] for r in RULES]
        assert advised.advised == RULES[int(np.argmin(means))]
        assert advised.missing == CELLS[k].missing[advised.advised]
    assert [a.best for a in found] == ["fedavg", "scaffold", "auto", "mifa"]
    lines = [*held_out_lines(CELLS)]
    assert f"| the advice | {100 * np.mean([a.missing for a in found]):.1f} % |" in "\n".join(lines)
    assert lines[-1].startswith("| always `fedavg` |"), "the worst rule is last"
    with pytest.raises(BadInput, match="at least 2"):
        held_out(CELLS[:1])


def test_advice_that_is_worse_than_always_auto_is_not_given() -> None:
    misleading = [
        lesson("a", 0.2, fedavg=0.0, auto=0.1),
        lesson("b", 0.21, fedavg=0.9, auto=0.0),
        lesson("c", 0.8, fedavg=0.1, auto=0.15),
        lesson("d", 0.81, fedavg=0.9, auto=0.0),
    ]
    assert policy(misleading, ["fedavg", "auto"]) == (False, True)
    assert {a.advised for a in held_out(misleading)} == {"auto"}
    even = [lesson("e", 0.0, fedavg=0.2, auto=0.1), lesson("f", 0.0, fedavg=0.0, auto=0.1)]
    assert policy([*misleading, *even], ["fedavg", "auto"]) == (False, False), "fedavg is taken where it is worse"


def test_the_packaged_table_is_no_worse_than_always_auto_on_unseen_cells() -> None:
    cells = read()
    advised = [a.missing for a in held_out(cells)]
    assert sum(advised) <= sum(c.missing["auto"] for c in cells) + 1e-9


@pytest.mark.parametrize("x", [EVEN, RARE])
def test_without_bias_or_visits_plain_averaging_is_advised_unless_the_arena_saw_a_gain(x: Any) -> None:
    how = Policy(False, True)
    assert choose(CELLS, x, RULES, how) == "fedavg", "no such cell was tried"
    assert choose(CELLS, CELLS[2].features, RULES, how) == "auto"
    for gain, rule in ((0.005, "fedavg"), (0.05, "auto")):
        tried = Lesson("tried", x, {"fedavg": gain, "auto": 0.0, "mifa": 1.0})
        assert choose([*CELLS, tried], x, RULES, how) == rule
        assert choose([*CELLS, tried], x, RULES, Policy(False, False)) == "auto"


def test_clients_that_come_in_turns_are_not_even() -> None:
    turns = np.tile(np.repeat(np.eye(4, dtype=bool), 5, axis=0), (10, 1))
    x = features(measure(of_table("turns", turns, None)), True)
    assert x[0] == 0
    assert case(x) == ""
    assert case(features(measure(of_probs(np.full(4, 0.25), None)), True)) == "even"


def test_a_bias_that_nobody_notices_is_none() -> None:
    m = measure(of_probs(np.array([1, 0.98, 1, 0.97]), None))
    assert 0 < m.bias < 0.01
    assert features(m, True)[0] == 0


def test_a_participation_that_needs_no_memory_gets_a_reason() -> None:
    thousand = of_probs(np.full(1000, 0.015), None)._replace(planned=100)
    found = rules.advise(measure(thousand), True, CELLS)
    assert found.entry == {"kind": "fedavg"}
    assert found.why.startswith("The average client is seen 1.5 times in 100 rounds: too seldom for a memory.")
    assert "In 4 test federations" in found.why
    assert "fedavg's 40 %, auto's 15 %" in found.why
    assert found.also == []
    even = rules.advise(measure(of_probs(np.full(20, 0.3), None)._replace(planned=100)), True, CELLS)
    assert even.entry == {"kind": "fedavg"}
    assert "there is no bias to correct" in even.why
    gain = Lesson("even", EVEN, {"fedavg": 0.2, "auto": 0.0, "mifa": 0.1, "scaffold": 0.1})
    found = rules.advise(measure(of_probs(np.full(20, 0.3), None)._replace(planned=1000)), True, [*CELLS, gain])
    assert found.entry == {"kind": "auto"}
    assert "in 1 test federation like that a memory helped: auto's 0 %, fedavg's 20 %" in found.why


def test_rules_that_ask_more_of_clients_are_only_hints() -> None:
    names = ["fedavg", "auto", "scaffold", "fedawe", "focus", "ca-fed", "fedpbc", "mifa"]
    assert plain(names) == ["fedavg", "auto", "mifa"]
    assert plain(names, memory=False) == ["fedavg"]
    m = measure(of_probs(np.array([1, 0.1]), None))
    cells = [lesson("one", 0.2, auto=0.1, mifa=0.2, fedavg=0.5, scaffold=0.0)]
    advice = rules.advise(m, True, cells)
    assert advice.entry == {"kind": "auto"}
    assert [hint.entry["kind"] for hint in advice.also] == ["mifa", "fedavg", "scaffold"]
    assert advice.why == (
        "In 1 test federation the training objective ended on average so much short of the best rule's progress: "
        "auto's 10 %, fedavg's 50 %; in the one that is most alike (one): auto's 10 %, fedavg's 50 %."
    )
    assert "expected 20.0 % short" in advice.also[0].when
    assert rules.advise(m, False, cells).entry["estimator"] == rules.LEARNT


def test_the_period_of_amplified_is_the_cycle() -> None:
    cells = [lesson("one", 0.2, amplified=0.0, fedavg=0.1)]
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
    assert [(a.cell, a.missing) for a in again] == [(c.cell, c.missing) for c in CELLS]
    assert np.array([a.features for a in again]) == pytest.approx(np.array([c.features for c in CELLS]))
    for text, message in (
        ("", "has no cells"),
        ("cell," + ",".join(FEATURES) + ",fedavgg\na,0,0,0,0,0,0,0,1\n", "fedavg"),
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
    assert {*found[0].missing} == {"fedavg", "unbiased"}, "a label that is no recipe is left out"
    assert found[0].features[[0, 5]] == pytest.approx(features(measure(HALVES), True)[[0, 5]], abs=1e-3)
    assert found[1].features[5] == 0, "p was estimated there"


HALVES = of_probs(np.array([1, 1, 0.3, 0.3]), None)
