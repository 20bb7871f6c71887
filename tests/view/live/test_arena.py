"""The leaderboard of a contest on the page: the numbers of `table.md`, and a sentence where there is none."""

import os
from pathlib import Path

import pytest

from fedstale.core import BadInput
from fedstale.lab.arena import records, table
from fedstale.lab.arena.records import RECORD, read
from fedstale.lab.arena.scores import standings
from fedstale.lab.runs.store import open_store
from fedstale.view.live.axes import View
from fedstale.view.live.experiment import ARENA, Experiments
from fedstale.view.live.index import Index
from tests.lab.arena.small_suite import finished


def opened(out: Path) -> Experiments:
    index = Index([out / "runs"])
    index.scan()
    return Experiments(index)


def test_it_has_the_cells_of_the_table_and_marks_the_first(tmp_path: Path) -> None:
    finished(tmp_path / "contest")
    page = opened(tmp_path / "contest")
    found, held = page.show(ARENA, View()), read(tmp_path / "contest")
    ranked = standings(held.cells, held.full)
    for row in table.rows(ranked):
        assert all(cell in found["above"] for cell in row)
    whole = found["above"].split('data-board="||"')[1].split("</table>")[0]
    assert whole.count("<strong>") == 1, "the first alone"
    (plot,) = page.plots(ARENA, View())[0].plots
    assert plot.data[0]["y"][::-1] == [s.rule for s in ranked]
    assert plot.data[0]["x"][::-1] == pytest.approx([100 * s.missing.mean for s in ranked], rel=1e-5)
    assert page.numbers(ARENA, 0, View()).count("\n") == 1 + len(ranked)


def test_it_is_read_again_when_its_record_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(tmp_path / "contest")
    page, reads = opened(tmp_path / "contest"), list[Path]()
    monkeypatch.setattr(records, "read", lambda folder: (reads.append(folder), read(folder))[1])
    page.show(ARENA, View())
    page.show(ARENA, View())
    os.utime(tmp_path / "contest" / RECORD, ns=(1, 1))
    page.show(ARENA, View())
    assert len(reads) == 2


def test_without_a_contest_there_is_a_sentence(tmp_path: Path) -> None:
    open_store(tmp_path / "runs")
    with pytest.raises(BadInput, match="`fedstale arena run` holds one"):
        opened(tmp_path).show(ARENA, View())
