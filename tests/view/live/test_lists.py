"""The tables of the page: search, filter, sort, pages, and what nonsense gets."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedstale.core import BadInput
from fedstale.lab.runs.store import RunFolder
from fedstale.view.live.index import Index, Row
from fedstale.view.live.lists import PAGE, Lists


def rows(count: int) -> Iterator[Row]:
    for k in range(count):
        state = "running" if k % 10 == 0 else "finished"
        left = 60.0 * k if state == "running" else None
        yield Row(
            RunFolder(Path(f"/store/run-{k}")), f"key{k % 3}", f"rule-{k % 4}", k, state, k, count, 1.5, left,
            "accuracy", k / count, f"2026-01-01T00:{k % 60:02}:00Z", "",
        )  # fmt: skip


@pytest.fixture
def lists() -> Lists:
    index = Index([])
    index.rows = {row.folder.path: row for row in rows(120)}
    index.settings = {
        f"key{k}": {"data": {"dataset": "digits", "clients": 5}, "participation": {"kind": "all"}, "rounds": 10 + k}
        for k in range(3)
    }
    return Lists(index)


def test_a_page_has_its_rows_and_says_how_many_there_are(lists: Lists) -> None:
    first, last = lists.runs({"sort": "seed"}), lists.runs({"sort": "seed", "page": "3"})
    assert [row["seed"] for row in first["rows"]] == list(range(PAGE))
    assert [row["seed"] for row in last["rows"]] == list(range(2 * PAGE, 120))
    assert (first["found"], first["all"], first["pages"]) == (120, 120, 3)
    assert lists.runs({"page": "99"})["page"] == 3


def test_search_looks_at_names_labels_states_and_titles(lists: Lists) -> None:
    assert lists.runs({"q": "RULE-2"})["found"] == 30
    assert lists.runs({"q": "run-7 finished"})["found"] == 10  # run-7 and run-71 … run-79
    assert lists.runs({"q": "digits 5"})["found"] == 120
    assert lists.runs({"q": "nothing like it"})["rows"] == []


def test_states_are_counted_and_filtered(lists: Lists) -> None:
    found = lists.runs({"state": "running"})
    assert found["counts"] == {"running": 12, "finished": 108}
    assert {row["state"] for row in found["rows"]} == {"running"}


@pytest.mark.parametrize("key", ["label", "seed", "state", "progress", "speed", "left", "value", "started", "name"])
def test_every_column_sorts_both_ways(lists: Lists, key: str) -> None:
    up, down = lists.runs({"sort": key, "down": "0"}), lists.runs({"sort": key, "down": "1"})
    assert (up["sort"], up["down"], down["down"]) == (key, False, True)
    if key in ("seed", "progress", "value"):
        assert up["rows"][0]["seed"] == 0
        assert down["rows"][0]["seed"] == 119
    if key == "left":
        assert down["rows"][0]["left"] == "110 min"


def test_an_experiment_sums_up_its_runs(lists: Lists) -> None:
    found = lists.experiments({"sort": "title"})
    assert found["found"] == 3
    row = found["rows"][0]
    assert row["title"] == "digits, 5 clients, all, 10 rounds"
    assert (row["runs"], row["state"], row["states"]) == (40, "running", {"running": 4, "finished": 36})
    assert (row["best"], row["value"]) == ("rule-1", "52.50 %")  # (9 + 21 + … + 117) / 10 of 120


@pytest.mark.parametrize("asked", [{"state": "happy"}, {"sort": "colour"}, {"page": "-1"}, {"page": "x"}])
def test_nonsense_gets_a_sentence(lists: Lists, asked: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        lists.runs(asked)
