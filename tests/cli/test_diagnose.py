"""From two CSV files to one page."""

import json
from pathlib import Path

import pytest

from fedstale.core import BadInput
from fedstale.data.tables import client_names, guess
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
    assert "unknown: the runs do not say" not in page
    assert "How to run it again</h3><pre><code>fedstale " in page
    found = json.loads(fedstale(*again, "--format", "json").stdout)  # the runs are stored
    assert found["clients"]["head"][:2] == ["client", "heard from"]
    assert "40 rounds" in found["answers"]["How sure is that?"]
    assert "same recording" in found["answers"]["How sure is that?"]


def test_columns_are_guessed_by_the_names_in_the_log(folder: Path) -> None:
    hospitals = client_names(folder / "patients.csv", "hospital")
    assert guess(folder / "patients.csv", hospitals, None, None) == ("hospital", "disease", "accuracy")
    with pytest.raises(BadInput, match=r"no column names clients of the recording \(a, b, …\); --client COLUMN"):
        guess(folder / "patients.csv", ["a", "b"], None, None)
    assert guess(folder / "patients.csv", [], "ward", "age")[:2] == ("ward", "age")
    with pytest.raises(BadInput, match="column 'hospitl' is unknown; did you mean 'hospital'"):
        guess(folder / "patients.csv", [], "hospitl", None)


def test_a_missing_file_is_told(folder: Path) -> None:
    done = fedstale("diagnose", "nowhere.csv", str(folder / "presence.csv"))
    assert "there is no file nowhere.csv" in done.stderr


def test_numbers_to_predict_are_compared_by_their_loss(tmp_path: Path) -> None:
    rare = "Ulm"
    rows = [(h, x, (3 if h == rare else -3) * x + 0.5) for h in ("Bonn", "Jena", rare) for x in range(-10, 10)]
    (tmp_path / "data.csv").write_text("\n".join(["site,dose,effect", *(f"{h},{x},{y}" for h, x, y in rows)]))
    days = [
        f"{h},2026-01-{d + 1:02}" for d in range(20) for h in ("Bonn", "Jena", rare) if h != rare or d % 10 == 0
    ]
    (tmp_path / "log.csv").write_text("\n".join(["site,day", *days]))
    files = [str(tmp_path / name) for name in ("data.csv", "log.csv")]
    done = fedstale("diagnose", *files, "--rounds", "12", "--seeds", "1,2", "-o", str(tmp_path / "out"))
    assert "of 3 clients lose more than 5 % of test loss: Ulm (" in done.stdout
    assert "test loss, " in done.stdout.splitlines()[1]
    assert "accuracy" not in done.stdout
