"""Participation tied to labels: the inner product, its scale, its bounds."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import BadInput
from fedstale.core.rng import stream
from fedstale.participation.bernoulli import LabelTied, tied_probs
from fedstale.testing import check_participation

COUNTS = np.array([[10, 0, 0], [0, 5, 5], [1, 1, 2], [0, 0, 7]])


def test_by_hand() -> None:
    r = stream(3, "label tied").dirichlet([0.5] * 3)
    inner = [r[0], (r[1] + r[2]) / 2, r[0] / 4 + r[1] / 4 + r[2] / 2, r[2]]
    wanted = [min(1.0, max(0.02, x * 0.3 / (sum(inner) / 4))) for x in inner]
    got = tied_probs(COUNTS, 0.5, 0.3, 0.02, stream(3, "label tied"))
    np.testing.assert_allclose(got, wanted)
    np.testing.assert_allclose(LabelTied(COUNTS, 0.5, 0.3, 0.02, seed=3).probs(4), wanted, rtol=1e-6)


@given(st.floats(0.05, 100), st.floats(0.05, 1), st.floats(0, 0.05), st.integers(0, 100))
def test_within_bounds_and_on_average_the_mean(α: float, mean: float, floor: float, seed: int) -> None:
    p = tied_probs(COUNTS, α, mean, floor, stream(seed))
    assert ((p >= floor) & (p <= 1)).all()
    if ((p > floor) & (p < 1)).all():  # neither bound was needed
        assert p.mean() == pytest.approx(mean)


def test_counts_and_shares_are_the_same() -> None:
    shares = COUNTS / COUNTS.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(LabelTied(COUNTS).probs(4), LabelTied(shares).probs(4))


def test_same_labels_same_probability_and_a_wide_draw_makes_all_alike() -> None:
    p = LabelTied([[1, 2], [2, 4], [5, 0]], concentration=0.3, floor=0).probs(3)
    assert p[0] == p[1] != p[2]
    np.testing.assert_allclose(LabelTied(COUNTS, concentration=1e6, mean=0.2).probs(4), 0.2, rtol=0.01)


def test_rows_are_independent_coins() -> None:
    part = LabelTied(COUNTS, 0.5, 0.3)
    check_participation(part, n=4)
    rows = np.array(list(islice(part.rows(4, stream(0)), 5000)))
    assert abs(np.corrcoef(rows[1:, 1], rows[:-1, 1])[0, 1]) < 4 / np.sqrt(5000)
    np.testing.assert_array_equal(part.mixing(4), np.zeros(4))
    np.testing.assert_array_equal(rows[:7], list(islice(part.rows(4, stream(0)), 7)))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: LabelTied([1, 2]),
            r"labels must be \(clients, classes\) counts or shares of at least 0, got shape",
        ),
        (lambda: LabelTied([[1, -2]]), "labels must be"),
        (lambda: LabelTied([[1, float("nan")]]), "labels must be"),
        (lambda: LabelTied([[1, 2], [0, 0]]), r"at least one sample of each client, got none of clients \[1\]"),
        (lambda: LabelTied([[1]], concentration=0), "concentration must be above 0, got 0"),
        (lambda: LabelTied([[1]], mean=0), r"mean must be in \(0, 1\], got 0"),
        (lambda: LabelTied([[1]], floor=2), r"floor must be in \[0, 1\], got 2"),
        (lambda: LabelTied([[1], [1]]).probs(3), "3 clients need 3 rows of labels, got 2"),
    ],
)
def test_settings_are_checked(make: object, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        make()  # type: ignore[operator]
