"""Tables as spreadsheets of several countries write them."""

import gzip
from pathlib import Path
from unicodedata import normalize

import pytest

from fedstale.core.text_files import csv_lines, open_text, with_points

TEXT = 'Klinik;"Alter, Jahre";Befund\r\nKöln;63,5;ja\r\n'
ROWS = [["Klinik", "Alter, Jahre", "Befund"], ["Köln", "63,5", "ja"]]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_are_known_by_their_bytes(tmp_path: Path, encoding: str) -> None:
    for name, write in (("a.csv", Path.write_bytes), ("a.csv.gz", lambda p, b: p.write_bytes(gzip.compress(b)))):
        write(tmp_path / name, TEXT.encode(encoding))
        with open_text(tmp_path / name) as file:
            assert [*csv_lines(file)] == ROWS


def test_what_is_not_utf_8_is_read_as_windows_writes_it_and_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(TEXT.encode("cp1252"))
    with pytest.warns(UserWarning, match=r"a.csv is not in UTF-8 and is read as Windows-1252"):
        file = open_text(tmp_path / "a.csv")
    with file:
        assert [*csv_lines(file)] == ROWS


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_is_what_the_first_line_has_most_of(tmp_path: Path, separator: str) -> None:
    (tmp_path / "a.csv").write_text(f"a{separator}b\n1{separator}2\n")
    with open_text(tmp_path / "a.csv") as file:
        assert [*csv_lines(file)] == [["a", "b"], ["1", "2"]]


def test_the_first_line_may_name_the_separator_and_marks_may_be_typed_apart(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("sep=;\n" + normalize("NFD", TEXT), "utf-8-sig")
    with open_text(tmp_path / "a.csv") as file:
        lines = csv_lines(file)
        assert [*lines] == ROWS
        assert lines.line_num == 3


def test_commas_are_decimal_unless_they_separate() -> None:
    cells = ["63,5", "-1,25", "ja, nein", "7"]
    assert with_points(cells, ";") == ["63.5", "-1.25", "ja, nein", "7"]
    assert with_points(cells, ",") == cells
