"""From two CSV files to one page."""

import json
from pathlib import Path

import pytest

from fedstale.cli.new import HOSPITALS
from fedstale.core import BadInput
from fedstale.lab.tabular import guess
from tests.cli.commands import fedstale

pytest.importorskip("plotly", reason="the report needs the extra `report`")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("diagnose") / "mine"
    fedstale("new", str(made))
    return made


def test_two_files_make_a_page_with_names_and_four_answers(folder: Path) -> None:
    files = [str(folder / name) for name in ("patients.csv", "presence.csv")]
    out = folder / "diagnosis"
    again = ["diagnose", *files, "--rounds", "40", "--seeds", "1,2", "-o", str(out)]
    done = fedstale(*again)
    for question in (
        "What does plain averaging cost you?",
        "Who is left behind?",
        "Which rule?",
        "How sure is that?",
    ):
        assert question in done.stdout
    assert "clients are in the column hospital, to be predicted is disease" in done.stderr
    page = (out / "diagnosis.html").read_text()
    assert "Aachen" in page
    found = json.loads(fedstale(*again, "--format", "json").stdout)  # the runs are stored
    assert found["clients"]["head"][:2] == ["client", "heard from"]
    assert "40 rounds" in found["answers"]["How sure is that?"]
    assert "same recording" in found["answers"]["How sure is that?"]


def test_columns_are_guessed_by_the_names_in_the_log(folder: Path) -> None:
    assert guess(folder / "patients.csv", HOSPITALS, None, None) == ("hospital", "disease")
    with pytest.raises(BadInput, match=r"no column names clients of the recording \(a, b, …\); --client COLUMN"):
        guess(folder / "patients.csv", ["a", "b"], None, None)
    assert guess(folder / "patients.csv", [], "ward", "age") == ("ward", "age")
    with pytest.raises(BadInput, match="column 'hospitl' is unknown; did you mean 'hospital'"):
        guess(folder / "patients.csv", [], "hospitl", None)


def test_a_missing_file_is_told(folder: Path) -> None:
    done = fedstale("diagnose", "nowhere.csv", str(folder / "presence.csv"))
    assert "there is no file nowhere.csv" in done.stderr
