"""What the picture of `fedstale inspect` shows."""

import numpy as np

from fedstale.view.plots.recording import SIZE, _at_least, recording

# (rounds, clients): 0 always, 1 in turns of two, 2 once, 3 never
HERE = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 0]], bool)
COUNTS = np.array([0, 1, 1])


def drawn(here: np.ndarray) -> list:
    return recording(here, np.zeros(here.shape[1]), COUNTS, COUNTS, COUNTS, "title").axes


def test_the_rows_are_drawn_the_rarest_first() -> None:
    marginals, mixing, stretches, staleness, raster = every = drawn(HERE)
    assert [axes.get_subplotspec().num1 for axes in every] == [0, 1, 2, 3, 4]  # none is drawn over another
    assert marginals.lines[0].get_ydata().tolist() == [0, 0.25, 0.5, 1]
    assert marginals.lines[1].get_ydata() == [0.4375] * 2  # the mean
    image = raster.images[0].get_array()
    assert (image.mean(axis=2) < 1).T.tolist() == HERE[:, [3, 2, 1, 0]].tolist()
    assert raster.get_ylabel() == "4 clients"
    assert [t.get_text() for t in stretches.get_legend().get_texts()] == ["presence", "absence"]
    assert mixing.get_xlabel() == "correlation of a round with the next, λ"
    assert staleness.lines[0].get_ydata().tolist() == [1.0, 0.5, 0.0]


def test_many_clients_are_sampled_and_many_rounds_put_together() -> None:
    raster = drawn(np.tile([True, False], (1000, 50)).T[:, :].T)[-1]
    assert raster.get_ylabel() == f"{SIZE[0]} of 100 clients"
    image = raster.images[0].get_array()
    assert image.shape[0] == SIZE[0]
    assert image.shape[1] <= SIZE[1]
    assert raster.images[0].get_extent() == [0.5, 1000.5, -0.5, 99.5]


def test_shares_of_at_least_k() -> None:
    k, share = _at_least(np.array([0, 3, 0, 1]), 1)
    assert (k.tolist(), share.tolist()) == ([1, 2, 3, 4], [1.0, 0.25, 0.25, 0.0])
