"""`fedstale export --to csv` and `--to parquet`: the numbers of all runs of a folder as tables."""

import csv
from pathlib import Path

import pytest

from fedstale.cli.export import export
from fedstale.lab.runs.store import RunFolder
from tests.view.live.stores import computed


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "runs"
    computed(folder, rounds=3, seeds=[1], algorithms=["fedavg", "auto"])
    return folder


def test_csv_has_the_numbers_of_the_store(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(str(runs), "csv", into=tmp_path / "tables")
    assert "runs.csv: 2 rows" in capsys.readouterr().out
    with (tmp_path / "tables" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for run in runs.glob("*-s1-*"):
        last = RunFolder(run).metrics()[-1]
        (row,) = [r for r in rows if (r["run"], r["round"], r["metric"]) == (run.name, "3", "accuracy")]
        assert float(row["value"]) == last["accuracy"]


def test_parquet_has_the_same_rows(runs: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs the extra `parquet`")
    pytest.importorskip("pyarrow", reason="needs the extra `parquet`")
    export(str(runs), "parquet", into=tmp_path)
    export(str(runs), "csv", into=tmp_path)
    for name in ("runs", "metrics"):
        table = pandas.read_parquet(tmp_path / f"{name}.parquet")
        assert len(table) == len(pandas.read_csv(tmp_path / f"{name}.csv"))
    assert table["value"].dtype == "float64"
