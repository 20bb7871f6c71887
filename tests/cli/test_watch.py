"""`fedstale watch`: what it says of runs that are computed, finished, or not there yet."""

import io
from pathlib import Path

from rich.console import Console

from fedstale.cli import watch
from fedstale.lab.runs.store import RunFolder
from fedstale.view.live.index import Row


def row(k: int, state: str, left: float | None = None) -> Row:
    return Row(
        RunFolder(Path(f"/store/run-{k}")), "key", f"rule [{k}]", k, state, 10 * k, 100, 2.5, left, "accuracy", 0.5,
        "2026-01-01T00:00:00Z", "",
    )  # fmt: skip


def printed(rows: list[Row]) -> str:
    file = io.StringIO()
    Console(file=file, width=120).print(watch.picture(rows))
    return file.getvalue()


def test_the_summary_counts_states_and_rounds_and_says_the_longest_time_left() -> None:
    rows = [row(1, "running", 30.0), row(2, "running", 600.0), row(3, "finished")]
    assert watch.summary(rows) == "2 running, 1 finished, 30 of 200 rounds, 10 min left"
    assert watch.summary([row(3, "finished")]) == "1 finished"
    assert watch.summary([]) == "no runs yet"


def test_the_table_has_the_running_runs_with_their_own_speed() -> None:
    text = printed([row(1, "running", 30.0), row(2, "running", 600.0), row(3, "finished")])
    assert "rule [1]" in text
    assert "rule [3]" not in text
    assert "2.5" in text
    assert "10 min" in text
    assert text.index("rule [2]") < text.index("rule [1]")  # the longest first


def test_many_runs_are_cut_and_counted() -> None:
    text = printed([row(k, "running", 1.0) for k in range(40)])
    assert f"and {40 - watch.ROWS} more" in text


def test_where_nothing_is_running_the_latest_are_shown() -> None:
    assert "rule [3]" in printed([row(3, "finished")])
    assert printed([]).strip() == "no runs yet"
