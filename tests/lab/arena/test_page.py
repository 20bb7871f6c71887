"""The page and the table of a contest."""

import json
import re
from pathlib import Path

import pytest

from fedstale.lab.arena.page import about, page
from fedstale.lab.arena.records import Contest, read
from fedstale.lab.arena.scores import standings
from fedstale.lab.arena.table import HEAD, TIE, markdown, percent, rows
from tests.lab.arena.small_suite import finished, hold


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Contest:
    out: Path = tmp_path_factory.mktemp("contest")
    finished(out)
    hold(out, rules=[{"kind": "unbiased", "label": "<b>un</b>"}, "fedawe"])
    return read(out)


def test_the_page_is_one_file_that_needs_no_network(held: Contest) -> None:
    text = page(held)
    assert "http" not in text
    assert "src=" not in text
    assert "@@" not in text
    assert "<b>un</b>" not in text
    assert "&lt;b&gt;un&lt;/b&gt;" in text


def test_a_board_for_every_filter_and_the_first_is_in_the_document(held: Contest) -> None:
    text = page(held)
    boards = json.loads(text.split('id="boards">')[1].split("</script>")[0])
    assert {"||", "bowl||", "|halves|", "||estimated", "bowl|turns|estimated"} <= {*boards}
    shown = [row["cells"][0] for row in boards["||"]["rows"]]
    order = re.findall(r"<tr[^>]*><td class=text>([^<]*)", text.split('id="rows">')[1].split("</tbody>")[0])
    assert [name.replace("&lt;", "<").replace("&gt;", ">") for name in order] == shown


def test_a_cell_has_its_table_its_curves_and_its_hash(held: Contest) -> None:
    text = page(held)
    cell = held.cells[0]
    inside = text.split(f"<details><summary>{cell.name}")[1].split("</details>")[0]
    assert cell.hash in inside
    assert inside.count("<polyline") == 5
    own = cell.entries["fedawe"].scores["own_objective"].mean()
    assert f"<td>{own:.4g}</td>" in inside, "the authors' point stands beside ours"


def test_the_markdown_table_has_the_rows_of_the_page(held: Contest) -> None:
    found = standings(held.cells, held.full)
    lines = markdown(found, about(held)).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(found)
    assert all(line.count("|") == len(HEAD) + 1 for line in table)
    assert [row[0].removesuffix(TIE) for row in rows(found)] == [s.rule for s in found]


def test_a_small_negative_number_is_no_negative_zero() -> None:
    assert percent(-0.0001) == "+0.0 %"
