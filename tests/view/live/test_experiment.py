"""One experiment: the numbers of the report, the table and the CSV files; unfinished runs; exports."""

import csv
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.lab.plan import by_label
from fedstale.lab.runs import query
from fedstale.lab.runs.store import RunFolder, runs
from fedstale.view.live import axes
from fedstale.view.live.axes import View
from fedstale.view.live.experiment import Experiments
from fedstale.view.live.index import Index
from fedstale.view.page import page, series, tables
from fedstale.view.terminal import runs as results
from tests.view.live.stores import computed, unfinish


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("experiment") / "runs"
    return folder, computed(folder)


@pytest.fixture
def store(made: Any, tmp_path: Path) -> Path:
    shutil.copytree(made[0], tmp_path / "runs")
    return tmp_path / "runs"


def opened(store: Path) -> tuple[Experiments, str]:
    index = Index([store])
    index.scan()
    return Experiments(index), next(iter(index.experiments()))


def test_the_page_the_report_the_table_and_the_csv_have_the_same_numbers(made: Any) -> None:
    folder, planned = made
    experiments, key = opened(folder)
    shown, _, setting = experiments.plots(key, View())
    (report,) = (page.setting_part(s, "", series.read(s.groups)) for s in query.settings(runs(folder)))
    assert shown.above == report.above
    assert [p.data for p in shown.plots] == [p.data for p in report.plots]
    rows = {
        r["algorithm"]: r
        for r in results.summary({k: [p.folder.result() for p in v] for k, v in by_label(planned).items()})
    }
    table, _ = tables.final(setting.groups)
    for row in table.rows:
        mean, std = rows[row[0]]["accuracy_last10"], rows[row[0]]["accuracy_last10_std"]
        assert row[1] == f"{100 * mean:.2f} ± {100 * std:.2f} %"
    numbers = list(csv.DictReader(io.StringIO(experiments.numbers(key, 0, View()))))
    for label, row in rows.items():
        last = [n for n in numbers if n["series"] == label][-1]
        assert float(last["test accuracy"]) == pytest.approx(row["accuracy_final"], rel=1e-5)
        assert last["round"] == "12"


def test_labels_are_never_html(made: Any) -> None:
    experiments, key = opened(made[0])
    found = experiments.show(key, View())
    text = found["above"] + found["seeds"] + found["below"] + "".join(f["html"] for f in found["figures"].values())
    text += experiments.compare(key, "fedavg", "<script>alert(1)</script>")["html"]
    assert "&lt;script&gt;" in text
    assert "<script" not in text


def test_runs_that_are_not_finished_are_drawn_as_far_as_they_are(store: Path) -> None:
    for run in store.glob("fedavg-*"):
        unfinish(RunFolder(run), 6)
    late = next(store.glob("auto-s1*"))
    unfinish(RunFolder(late), 4)
    experiments, key = opened(store)
    (accuracy, *_), _, setting = experiments.plots(key, View())[0].plots, None, experiments.setting(key)[0]
    ends = {t["legendgroup"]: max(t["x"]) for t in accuracy.data}
    assert ends == {"fedavg": 6, "auto": 12, "<script>alert(1)</script>": 12}  # auto by its finished seed
    assert [g.label for g in setting.groups if not g.runs] == ["fedavg"]
    assert "4 of 12" in experiments.show(key, View())["seeds"]


def test_a_file_that_grows_is_drawn_on(store: Path) -> None:
    run = next(store.glob("fedavg-s1*"))
    whole = (run / "metrics.jsonl").read_bytes()
    for folder in store.glob("fedavg-*"):
        unfinish(RunFolder(folder), 4)
    experiments, key = opened(store)
    experiments.show(key, View())
    for folder in store.glob("fedavg-*"):
        (folder / "metrics.jsonl").write_bytes(whole)
    plot = experiments.plots(key, View())[0].plots[0]
    assert max(t["x"][-1] for t in plot.data if t["legendgroup"] == "fedavg" and "name" in t) == 12


def test_curves_over_seconds_and_bytes(made: Any) -> None:
    experiments, key = opened(made[0])
    by = {x: experiments.plots(key, View(x))[0].plots[0] for x in axes.AXES}
    lines = RunFolder(next(made[0].glob("fedavg-s1*"))).metrics()
    parameters = 64 * 10 + 10
    _, total = axes.sent(lines, parameters)
    assert total[-1] == 4 * parameters * sum(line["available"] + line["participants"] for line in lines)
    assert [t["y"] for t in by["bytes"].data] == [t["y"] for t in by["round"].data]
    for x, plot in by.items():
        assert plot.layout["xaxis"]["title"]["text"] == axes.AXES["round" if x == "hours" else x]  # without a clock
        assert all(np.diff(next(t for t in plot.data if "name" in t)["x"]) >= 0)


def test_smoothing_is_a_moving_average_of_each_seed(made: Any) -> None:
    experiments, key = opened(made[0])
    raw, smooth = (experiments.plots(key, View("round", s))[0].plots[0] for s in (0.0, 0.9))
    values = [query.curve([RunFolder(p).metrics()], "accuracy")[1][0] for p in made[0].glob("fedavg-*")]
    weights = 0.9 ** np.arange(len(values[0]))[::-1]
    expected = np.mean([weights @ v / weights.sum() for v in values])
    last = {
        k: next(t for t in p.data if t.get("name") == "fedavg")["y"][-1] for k, p in (("r", raw), ("s", smooth))
    }
    assert last["s"] == pytest.approx(expected, rel=1e-5)
    assert last["r"] != last["s"]


def test_nonsense_and_what_is_gone_get_a_sentence(store: Path) -> None:
    experiments, key = opened(store)
    for x, smooth in (("years", "0"), ("round", "1"), ("round", "nan"), ("round", "much")):
        with pytest.raises(BadInput):
            axes.view(x, smooth)
    with pytest.raises(BadInput, match="no figure 99"):
        experiments.numbers(key, 99, View())
    with pytest.raises(BadInput, match="the algorithm"):
        experiments.compare(key, "fedavg", "nobody")
    shutil.rmtree(store)
    experiments.index.scan()
    with pytest.raises(BadInput, match="not in the store any more"):
        experiments.show(key, View())


def test_a_damaged_file_is_told_and_the_rest_is_shown(store: Path) -> None:
    run = next(store.glob("fedavg-s1*"))
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(lines[:5]) + b"nonsense\n" + b"".join(lines[6:]))
    experiments, key = opened(store)
    found = experiments.show(key, View())
    assert any("damaged in line 6" in note for note in found["notes"])
    assert len(found["figures"]) >= 5


def test_a_sweep_is_a_map_of_the_best_beta_that_fills_up(tmp_path: Path) -> None:
    betas = [{"kind": "fedstale", "beta": b, "label": f"β = {b}"} for b in (0.0, 1.0)]
    store, more = tmp_path / "figure" / "runs", {"seeds": [1], "rounds": 2, "algorithms": betas}
    found = computed(store, **more, participation={"kind": "two-groups", "p_min": 0.5})
    (store.parent / "fig-smoke-claims.txt").write_text("HOLDS <b>β</b>")
    experiments, _ = opened(store)
    assert "A map of the best β needs" in experiments.show("maps", View())["above"]
    computed(store, **more, participation={"kind": "two-groups", "p_min": 0.1})
    experiments.index.scan()
    shown = experiments.show("maps", View())
    *_, plot = shown["figures"].values()  # after that of the sweep
    (values,) = plot["data"][0]["z"]
    best = max(found, key=lambda p: p.folder.result()["accuracy"]["last10"]).config["strategy"]["beta"]
    assert values[0] == best
    assert len(values) == 2
    assert "HOLDS &lt;b&gt;β&lt;/b&gt;" in shown["below"]
