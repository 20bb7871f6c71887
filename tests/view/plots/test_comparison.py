"""What the picture of `fedstale run` shows: means, bands, labels, and every client."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from fedstale.lab.runs import metrics, store
from fedstale.lab.runs.metrics import Metric
from fedstale.lab.runs.verdict import Halves
from fedstale.view.plots import pictures
from fedstale.view.plots.palette import DARK, looks

CONFIG = {"data": {"clients": 5}, "label": "fedavg"}
VALUES = np.array([[0.1, 0.5, 0.6], [0.2, 0.5, 0.9], [0.3, 0.8, 0.6]])  # (seeds, rounds)


def lines(accuracies: Any, heard: bool = True, **more: float) -> list[dict[str, Any]]:
    """A run in which clients 0 and 3 are heard from in odd rounds, and nobody in even ones."""
    who = [{"heard": [0, 3] if t % 2 else []} if heard else {} for t in range(1, 1 + len(accuracies))]
    return [
        {"round": t, "participants": 2, "accuracy": a, "objective": 1 / a, **w, **more}
        for t, (a, w) in enumerate(zip(accuracies, who, strict=True), 1)
    ]


def drawn(behind: dict[str, Halves] | None = None, **more: float) -> Any:
    groups = {"FedAvg": [lines(v, **more) for v in VALUES], "FedStale": [lines(VALUES[0] / 20, **more)]}
    return pictures.figure(groups, CONFIG, "title", behind=behind or {})


def test_curves_are_means_with_a_band_of_one_standard_deviation() -> None:
    accuracy, objective, _ = drawn().axes
    first, second = accuracy.lines
    np.testing.assert_allclose(first.get_xdata(), [1, 2, 3])
    np.testing.assert_allclose(first.get_ydata(), VALUES.mean(axis=0))
    np.testing.assert_allclose(second.get_ydata(), VALUES[0] / 20)
    (band,) = accuracy.collections  # one seed alone has none
    edges = band.get_paths()[0].vertices
    for t in (1, 2, 3):
        at = edges[edges[:, 0] == t][:, 1]
        mean, std = VALUES[:, t - 1].mean(), VALUES[:, t - 1].std(ddof=1)
        np.testing.assert_allclose([at.min(), at.max()], [mean - std, mean + std])
    np.testing.assert_allclose(objective.lines[0].get_ydata(), (1 / VALUES).mean(axis=0))


def test_axes_and_legend_are_labelled() -> None:
    figure = drawn()
    accuracy, objective, _ = figure.axes
    assert (accuracy.get_xlabel(), accuracy.get_ylabel()) == ("round", "test accuracy (%)")
    assert accuracy.yaxis.get_major_formatter()(0.25, 0) == "25"
    assert (accuracy.get_yscale(), objective.get_yscale()) == ("linear", "log")  # it spans a factor of 100
    assert [t.get_text() for t in accuracy.get_legend().get_texts()] == ["FedAvg", "FedStale"]
    first, second = looks(["FedAvg", "FedStale"]).values()
    assert [line.get_color() for line in accuracy.lines] == [first.colour, second.colour]
    assert first.dash != second.dash
    assert figure.get_suptitle() == "title"


def test_a_metric_that_the_seeds_have_in_no_common_round_has_an_empty_panel() -> None:
    """As where a name in a run's file is damaged, and the file is older than checksums."""
    first, second = lines(VALUES[0]), lines(VALUES[1])
    first[-1]["objectivf_loss"] = 1.0
    panel = pictures.figure({"FedAvg": [first, second]}, CONFIG, "title").axes[-2]
    assert panel.get_ylabel() == "objectivf loss"
    assert [len(line.get_ydata()) for line in panel.lines] == [0]


def test_the_raster_has_every_client_also_those_never_heard_from() -> None:
    raster = drawn().axes[-1]
    image = raster.images[0].get_array()
    assert image.shape == (5, 3, 3)  # five clients, though the last is never heard from
    dark = np.all(np.isclose(image, to_rgb(DARK)), axis=2)
    assert np.argwhere(dark).tolist() == [[0, 0], [0, 2], [3, 0], [3, 2]]
    assert np.all(image[~dark] == 1)
    assert raster.images[0].get_extent() == [0.5, 3.5, -0.5, 4.5]
    assert all(tick == round(tick) for tick in [*raster.get_xticks(), *raster.get_yticks()])


def test_without_names_the_number_of_clients_is_drawn() -> None:
    figure = pictures.figure({"a": [lines(VALUES[0], heard=False)]}, CONFIG, "")
    assert figure.axes[-1].lines[0].get_ydata().tolist() == [2, 2, 2]


def test_a_new_metric_has_a_panel_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [axes.get_ylabel() for axes in drawn(coverage=0.5).axes][2] == "coverage"  # also where it is unknown
    monkeypatch.setattr(metrics, "METRICS", (*metrics.METRICS, Metric("coverage", "coverage of rare classes")))
    assert [axes.get_ylabel() for axes in drawn(coverage=0.5).axes][2] == "coverage of rare classes"


def test_a_rule_around_another_has_its_label_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, drawn = store.RunFolder(tmp_path / "run"), list[Figure]()
    folder.path.mkdir()
    store.write_json(folder.path / "config.json", CONFIG)
    (folder.path / "metrics.jsonl").write_text('{"round":1,"accuracy":0.5,"heard":[0]}\n')
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    long = [f"clipped strategy={{'kind': 'amplified', 'q': {[1, 1, 1, *range(7), last]}}}" for last in (1, 2)]
    for names, due in ((["clipped strategy={'kind': 'fedavg'}"], 1), (long, 2)):
        pictures.comparison({name: [folder] for name in names}, "", tmp_path / "picture.png")
        labels = {str(line.get_label()) for axes in drawn[-1].axes for line in axes.lines}
        assert len({label for label in labels if label.startswith("clipped")}) == due, "none is lost"
        assert due == 2 or "clipped strategy=fedavg" in labels


def test_a_run_with_damaged_metrics_is_named_and_left_out(tmp_path: Path) -> None:
    folders = [store.RunFolder(tmp_path / name) for name in ("good", "bad")]
    for folder, text in zip(folders, ('{"round":1,"accuracy":0.5,"heard":[0]}\n', "{oops\n"), strict=True):
        folder.path.mkdir()
        store.write_json(folder.path / "config.json", CONFIG)
        (folder.path / "metrics.jsonl").write_text(text)
    with pytest.warns(UserWarning, match=r"a run is left out: .*bad/metrics\.jsonl"):
        pictures.comparison({"a": folders}, "", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_importing_our_plots_leaves_matplotlib_as_it_was() -> None:
    code = (
        "import sys, matplotlib; matplotlib.use('svg');"
        "from fedstale.view.plots import pictures, recording;"
        "from fedstale.lab.papers.draw import cells, curves;"
        "assert matplotlib.get_backend() == 'svg', matplotlib.get_backend();"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_both_halves_of_the_clients_stand_beside_the_curves() -> None:
    behind = {"FedAvg": Halves(often=0.97, rare=0.82), "FedStale": Halves(often=0.95, rare=0.97)}
    panel = drawn(behind=behind).axes[2]
    assert [t.get_text() for t in panel.get_yticklabels()] == ["FedAvg", "FedStale"]
    often, rare = panel.lines
    assert list(often.get_xdata()) == [97.0, 95.0]
    assert list(rare.get_xdata()) == [82.0, 97.0]
    assert list(rare.get_ydata()) == [1, 0]  # the first at the top
    assert [t.get_text() for t in panel.texts] == ["82", "97"]


def test_a_logarithmic_axis_has_plain_numbers() -> None:
    axes = drawn().axes[1]
    assert axes.yaxis.get_major_formatter()(0.2, 0) == "0.2"
    assert len(axes.get_yticks()) < 20


def test_a_notebook_shows_a_plot_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython asks `_ipython_display_` first, and the end of a cell shows every figure that pyplot still has."""
    import fedstale as fs

    matplotlib.use("agg")
    task = fs.Quadratic.random(n=3, d=2)
    found = fs.compare(task, ["fedavg"], fs.Bernoulli(0.9), rounds=2, local=fs.Local(lr=0.1), out=tmp_path / "runs")
    made: Any = fs.plot(found)
    with pytest.raises(NotImplementedError):
        made._ipython_display_()
    assert pyplot.fignum_exists(made.number), "a window stays open"
    monkeypatch.setattr(matplotlib, "get_backend", lambda: "module://matplotlib_inline.backend_inline")
    with pytest.raises(NotImplementedError):
        made._ipython_display_()
    assert not pyplot.fignum_exists(made.number)


def test_only_runs_can_be_plotted() -> None:
    with pytest.raises(ValueError, match=r"source must be a folder or .* got 3"):
        pictures.plot(3)  # type: ignore[arg-type]
