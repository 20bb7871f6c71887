"""From two files of one's own to runs whose clients keep their names."""

import random
from pathlib import Path

import pytest

import fedstale as fs
from fedstale.lab import schema
from fedstale.lab.execute import execute
from fedstale.lab.plan import plan

TOML = """
rounds = 4
algorithms = ["fedavg"]
data = { csv = "patients.csv", client = "hospital", label = "disease" }
local = { lr = 0.1 }
participation = { kind = "log", log = "presence.csv" }
"""


def two_files(folder: Path, cities: tuple[str, ...] = ("Aachen", "Bonn", "Celle")) -> Path:
    r = random.Random(1)
    people = [(c, r.gauss(0, 1)) for c in cities for _ in range(20)]
    lines = ["hospital,age,disease", *(f"{c},{x:.3f},{int(x + r.gauss(0, 1) > 0)}" for c, x in people)]
    (folder / "patients.csv").write_text("\n".join(lines))
    seen = [(c, d) for d in range(8) for k, c in enumerate(reversed(cities)) if d % (k + 1) == 0]
    (folder / "presence.csv").write_text("\n".join(["client,day", *(f"{c},2026-01-{d + 1:02}" for c, d in seen)]))
    (folder / "my.toml").write_text(TOML)
    return folder / "my.toml"


def test_names_travel_into_the_run_and_the_folder_of_the_files_is_not_in_its_key(tmp_path: Path) -> None:
    folders = tmp_path / "one", tmp_path / "two"
    names = []
    for folder in folders:
        folder.mkdir()
        experiment = schema.read(two_files(folder))
        planned = plan(experiment, folder / "runs")
        assert experiment.data["clients"] == 3
        list(execute(experiment, planned))
        run = planned[0].folder
        assert run.clients()["name"] == ["Aachen", "Bonn", "Celle"]
        assert (run.client_name(1), run.client_name(7)) == ("Bonn", "client 7")
        names.append(run.path.name)
    assert names[0] == names[1]


def test_other_content_is_another_run(tmp_path: Path) -> None:
    path = two_files(tmp_path)
    before = plan(schema.read(path), tmp_path / "runs")[0].folder
    rows = (tmp_path / "patients.csv").read_text()
    (tmp_path / "patients.csv").write_text(rows.replace(",1\n", ",0\n", 1))
    assert plan(schema.read(path), tmp_path / "runs")[0].folder != before


def test_a_client_of_the_data_that_the_log_does_not_know_is_a_sentence(tmp_path: Path) -> None:
    path = two_files(tmp_path)
    rows = (tmp_path / "patients.csv").read_text()
    (tmp_path / "patients.csv").write_text(rows.replace("Celle", "Zelle"))
    experiment = schema.read(path)
    with pytest.raises(fs.BadInput, match="not in the recorded participation: Zelle; it has Celle instead"):
        list(execute(experiment, plan(experiment, tmp_path / "runs")))


def test_what_was_done_with_the_columns_is_said(tmp_path: Path) -> None:
    experiment, said = schema.read(two_files(tmp_path)), list[str]()
    list(execute(experiment, plan(experiment, tmp_path / "runs"), say=said.append))
    assert any(
        "patients.csv: 60 rows of 3 clients (hospital); disease has 2 classes (0, 1)" in line for line in said
    )
