"""The page and the table of a contest."""

import html
import json
import re
from pathlib import Path

import pytest

from fedstale.lab.arena.records import Contest, read
from fedstale.lab.arena.scores import standings
from fedstale.lab.arena.table import HEAD, TIE, markdown, rows, signed
from fedstale.view.page.arena import page
from tests.lab.arena.small_suite import finished, hold


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Contest:
    out: Path = tmp_path_factory.mktemp("contest")
    finished(out)
    hold(out, rules=[{"kind": "unbiased", "label": "<b>un</b>"}, "fedawe"])
    return read(out)


def test_the_page_is_one_file_that_needs_no_network(held: Contest) -> None:
    text = page(held).split("<script>")[0]  # behind it comes plotly
    assert "default-src 'none'" in text
    assert "src=" not in text
    assert "@@" not in text
    assert "<b>un</b>" not in text
    assert "&lt;b&gt;un&lt;/b&gt;" in text


def test_a_board_for_every_filter_and_the_first_is_shown(held: Contest) -> None:
    text = page(held)
    boards = dict(re.findall(r'<div data-board="([^"]*)"( hidden)?>', text))
    assert {"||", "bowl||", "|halves|", "||estimated", "bowl|turns|estimated"} <= {*boards}
    assert [key for key, hidden in boards.items() if not hidden] == ["||"]
    whole = text.split('data-board="||"')[1].split("</table>")[0]
    order = re.findall(r'<th scope="row">([^<]*)', whole)
    assert [html.unescape(name) for name in order] == [row[0] for row in rows(standings(held.cells, held.full))]


def test_a_cell_has_its_table_its_curves_and_its_hash(held: Contest) -> None:
    text, cell = page(held), held.cells[0]
    inside = text.split(f"<h2>{cell.name}</h2>")[1].split("</section>")[0]
    assert cell.hash in inside
    (name,) = re.findall(r'class="plot" id="(p\d+)"', inside)
    plot = json.loads(text.split('id="plots">')[1].split("</script>")[0])[name]
    assert [trace["legendgroup"] for trace in plot["data"]] == [*cell.entries]
    curve = cell.entries["fedawe"].curves["objective"]
    assert (plot["data"][-1]["x"], plot["data"][-1]["y"]) == (curve.rounds, pytest.approx(curve.values, rel=1e-5))
    own = cell.entries["fedawe"].scores["own_objective"].mean()
    assert f"<td>{own:.4g}</td>" in inside, "the authors' point stands beside ours"


def test_the_markdown_table_has_the_rows_of_the_page(held: Contest) -> None:
    found = standings(held.cells, held.full)
    lines = markdown(held.cells, held.full).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(found)
    assert all(line.count("|") == len(HEAD) + 1 for line in table)
    assert [row[0].removesuffix(TIE) for row in rows(found)] == [s.rule for s in found]


def test_a_small_negative_number_is_no_negative_zero() -> None:
    assert signed(-0.0001) == "+0.0 %"
