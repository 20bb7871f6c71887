"""Who was heard from, who was not selected, who was away."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from fedstale.core import BadInput
from fedstale.lab import schema as configuration
from fedstale.lab.execute import execute
from fedstale.lab.plan import plan
from fedstale.lab.runs import store
from fedstale.lab.runs.query import AWAY, HEARD, NOT_SELECTED, recorded_presence
from fedstale.view.plots import pictures


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> store.RunFolder:
    """CA-Fed, with a price of bias so low that somebody is left out."""
    chosen = configuration.check(
        {
            "name": "decisions",
            "rounds": 12,
            "algorithms": [{"kind": "ca-fed", "kappa2": 0.01}],
            "data": {"dataset": "quadratic", "clients": 8, "dimension": 3, "spread": 3.0},
            "local": {"lr": 0.05, "steps": 2},
            "participation": "markov-classes",
        }
    )
    planned = plan(chosen, store.open_store(tmp_path_factory.mktemp("runs") / "store"))
    assert [p.result for p in execute(chosen, planned)][-1] is not None
    return planned[0].folder


def test_a_run_names_who_was_left_out(run: store.RunFolder) -> None:
    cells, lines = recorded_presence(run), run.metrics()
    assert cells.shape == (8, 12)
    for k, line in enumerate(lines):
        assert (cells[:, k] != AWAY).sum() == line["available"]
        assert np.flatnonzero(cells[:, k] == HEARD).tolist() == line["heard"]
        assert np.flatnonzero(cells[:, k] == NOT_SELECTED).tolist() == line.get("not_selected", [])
    assert (cells == NOT_SELECTED).any()
    assert (cells == HEARD).any()
    assert "not_selected" not in run.result()


def test_the_picture_shows_every_cell_and_what_it_sums_to(run: store.RunFolder, tmp_path: Path) -> None:
    cells = recorded_presence(run)
    shown = pictures.decisions_figure(run.config() | {"label": "clipped strategy={'kind': 'fedavg'}"}, cells)
    assert shown.get_suptitle() == f"clipped strategy=fedavg, seed {run.config()['seed']}"
    picture, shares, counts = shown.axes
    image = picture.images[0].get_array()
    for state in np.unique(cells):
        colour = to_rgb(pictures.COLOURS[state])
        np.testing.assert_allclose(image[cells == state], [colour] * int((cells == state).sum()))
    widths = [bar.get_width() for bar in shares.patches]  # type: ignore[attr-defined]
    np.testing.assert_allclose(widths[:8], (cells == HEARD).mean(axis=1))
    np.testing.assert_allclose(widths[8:16], (cells == NOT_SELECTED).mean(axis=1))
    tops = [area.get_paths()[0].vertices[:, 1].max() for area in counts.collections]
    assert tops[:2] == [(cells == HEARD).sum(axis=0).max(), (cells != AWAY).sum(axis=0).max()]
    assert [text.get_text() for text in shown.legends[0].get_texts()] == [*pictures.NAMES.values()]
    pictures.decisions(run, tmp_path / "raster.svg")
    assert "not selected" in (tmp_path / "raster.svg").read_text()


def test_a_run_without_names_has_no_picture_of_decisions(run: store.RunFolder, tmp_path: Path) -> None:
    folder = store.RunFolder(tmp_path)
    store.write_json(tmp_path / "config.json", run.config())
    with pytest.raises(BadInput, match="no rounds yet"):
        pictures.decisions(folder, tmp_path / "x.png")
    (tmp_path / "metrics.jsonl").write_text('{"round":1,"available":3,"participants":3}\n')
    with pytest.raises(BadInput, match="too many clients"):
        pictures.decisions(folder, tmp_path / "x.png")
