"""Tables of one's own: a CSV file or a data frame, with the clients in a column."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import fedstale as fs
from fedstale.data import from_frame
from fedstale.data.tables import Preparation
from fedstale.tasks.checksum import describe_task

ROWS = 40
TABLE = {
    "hospital": ["Bonn", "Aachen"] * (ROWS // 2),
    "age": [float(k) for k in range(ROWS - 1)] + [float("nan")],
    "ward": ["a", "b", "", "c"] * (ROWS // 4),
    "note": [f"text {k}" for k in range(ROWS)],
    "patient_id": [*range(ROWS)],
    "disease": ["yes", "no", "no", "yes"] * (ROWS // 4),
}


def test_columns_are_prepared_with_the_numbers_of_the_training_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstale.data.tables.CATEGORIES", 10)
    made = from_frame(TABLE, client="hospital", label="disease")
    assert made.names == ("Aachen", "Bonn")
    assert made.x.shape == (32, 4)  # age and three wards
    np.testing.assert_allclose(made.x[:, 0].mean(), 0, atol=1e-6)
    np.testing.assert_allclose(made.x[:, 0].std(), 1, atol=1e-6)
    assert {*made.x[:, 1:].sum(axis=1).tolist()} == {0.0, 1.0}  # a missing ward is none of them
    assert made.classes == 2
    assert "left out as names or dates, with a value of its own in most rows: note, patient_id" in made.note
    assert "scaled to mean 0 and deviation 1: age" in made.note
    assert "each category: ward (3)" in made.note


def test_a_column_with_one_value_in_the_training_rows_keeps_its_unit() -> None:
    assert Preparation(np.full((3, 1), 3.0), ["dose"], {})(np.array([[3.0], [5.0]])).tolist() == [[0.0], [2.0]]


def test_classes_keep_their_names_which_are_no_part_of_a_run_s_key() -> None:
    for values, names in ((TABLE["disease"], ("no", "yes")), ([3, 1, 3, 3] * (ROWS // 4), ("1", "3"))):
        made = from_frame(TABLE | {"disease": values}, client="hospital", label="disease")
        assert made.class_names == names
        task = fs.image_task(made, fs.models.Linear())
        assert {label.split(" (")[0] for told in task.labels for label in told.split(", ")} <= {*names}
        nameless = fs.image_task(dataclasses.replace(made, class_names=()), fs.models.Linear())
        assert nameless.labels[0].startswith(("0 (", "1 ("))
        assert describe_task(task) == describe_task(nameless)


def test_clients_without_a_test_sample_are_told_by_their_names() -> None:
    hospitals = ["Bonn", *["Aachen"] * (ROWS - 1)]
    with pytest.warns(UserWarning, match=r"^1 of 2 clients have one sample, hence none for testing: Bonn$"):
        from_frame(TABLE | {"hospital": hospitals}, client="hospital", label="disease")


def test_test_rows_do_not_change_the_preparation() -> None:
    def train(ages: list[float]) -> np.ndarray:
        return from_frame(TABLE | {"age": ages}, client="hospital", label="disease").x

    ages = [0.0 if age != age else age for age in TABLE["age"]]  # type: ignore[attr-defined]
    before = train(ages)
    same = [k for k in range(ROWS) if np.array_equal(train([*ages[:k], 1e6, *ages[k + 1 :]]), before)]
    assert len(same) == ROWS - len(before)


def test_a_csv_file_gives_what_the_frame_gives(tmp_path: Path) -> None:
    lines = [",".join(TABLE), *(",".join("" if v != v else str(v) for v in row) for row in zip(*TABLE.values()))]  # noqa: B905
    (tmp_path / "patients.csv").write_text("\n".join(lines))
    one = from_frame(tmp_path / "patients.csv", client="hospital", label="disease")
    np.testing.assert_array_equal(one.x, from_frame(TABLE, client="hospital", label="disease").x)


def test_a_table_of_a_european_spreadsheet_is_read(tmp_path: Path) -> None:
    rows = [f"{'Köln' if k % 2 else 'Bonn'};{k},5;{'ja' if k % 3 else 'nein'}" for k in range(20)]
    (tmp_path / "a.csv").write_bytes("\r\n".join(["Klinik;Alter;Befund", *rows]).encode("utf-16"))
    made = from_frame(tmp_path / "a.csv", client="Klinik", label="Befund")
    assert made.names == ("Bonn", "Köln")
    assert "scaled to mean 0 and deviation 1: Alter" in made.note


def test_a_label_of_many_numbers_is_predicted_as_a_number() -> None:
    made = from_frame({"c": [1, 1, 2, 2], "x": [1, 2, 3, 4], "y": [0.5, 1.5, 2.5, 3.25]}, client="c", label="y")
    assert made.y.dtype == np.float32
    assert made.y.shape[1:] == (1,)
    assert made.names == ("1", "2")


def test_rows_without_a_label_are_left_out_and_told() -> None:
    y = ["yes", "no", "", "no"] * (ROWS // 4)
    made = from_frame(TABLE | {"disease": y}, client="hospital", label="disease")
    assert len(made.y) + len(made.test_y) == 30
    assert "10 rows without it are left out" in made.note


@pytest.mark.parametrize(
    ("change", "settings", "sentence"),
    [
        ({}, {"client": "hospitl"}, "column 'hospitl' is unknown; did you mean 'hospital'"),
        ({"hospital": ["Bonn", ""] * 20}, {}, "hospital must name the client of every row, got 20 rows without"),
        ({"disease": ["yes"] * 40}, {}, "disease must have 2 to 100 different labels, got 1"),
        ({}, {"leave_out": ["age", "ward", "note", "patient_id"]}, "must have a column of inputs besides"),
    ],
)
def test_what_cannot_be_used_is_told(change: dict[str, list[str]], settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(fs.BadInput, match=sentence):
        from_frame(TABLE | change, **({"client": "hospital", "label": "disease"} | settings))  # type: ignore[arg-type]


def test_held_out_clients_lose_their_place_among_the_names() -> None:
    made = from_frame(TABLE, client="hospital", label="disease", held_out=[0])
    assert made.names == ("Bonn",)
