"""The map of Figure 1: pairs do not interact, and the shares of all β are the whole."""

import fedstale_fig1_map as figure
import numpy as np

import fedstale as fs


def test_a_pair_among_others_goes_where_it_goes_alone() -> None:
    many = figure.task(0, 3)
    alone = fs.Quadratic(many.centers[:, 2:4], many.curvature[:, 2:4, 2:4], start=[-10.0, -10.0])
    together = figure.distances(many, 0.8, 0.003, 1, (10, 40))
    np.testing.assert_allclose(together[:, 1:2], figure.distances(alone, 0.8, 0.003, 1, (10, 40)), rtol=1e-5)


def test_every_pair_has_one_nearest_beta() -> None:
    rows = figure.shares(4, (10, 20), (1, 2))
    assert [row["round"] for row in rows] == [10, 20] * len(figure.RATES)
    assert all(abs(sum(row[f"beta {beta:g}"] for beta in figure.BETAS) - 1) < 1e-3 for row in rows)
