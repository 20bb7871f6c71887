"""Label-tied probabilities over time: the formula, its profiles, and what the rows show."""

from itertools import islice

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.core.rng import stream
from fedstale.participation import LabelProfile, Sampling, Sine, Staircase

LABELS = np.array([[4, 0, 0, 0], [0, 0, 0, 3], [1, 1, 1, 1], [2, 0, 2, 0]])


def base(low=0.5, seed=0):
    φ = stream(seed, "label profile").random(4) * [1, 1, low, low]
    return np.array([φ[0], φ[3], φ.mean(), (φ[0] + φ[2]) / 2])


def test_stationary_probabilities_are_the_inner_product_of_labels_and_draw():
    np.testing.assert_allclose(LabelProfile(LABELS).probs(4), base(), rtol=1e-6)
    np.testing.assert_allclose(LabelProfile(LABELS, low=0.1, seed=3).probs(4), base(0.1, 3), rtol=1e-6)


@pytest.mark.parametrize(
    ("profile", "factors"),
    [
        (Staircase(period=4, low=0.25), [1, 1, 0.25, 0.25]),
        (Staircase(period=3, low=0.0), [1, 1, 0]),
        (Sine(period=4, amplitude=0.3), [0.7, 1.0, 0.7, 0.4]),
    ],
    ids=repr,
)
def test_a_profile_multiplies_and_repeats(profile, factors):
    process, rounds = LabelProfile(LABELS, profile=profile), 12_000
    np.testing.assert_allclose(process.probs(4), base() * np.mean(factors), rtol=1e-6)
    rows = np.array(list(islice(process.rows(4, stream(1, "rows")), rounds)))
    for place, factor in enumerate(factors):
        seen = rows[place :: len(factors)].mean(axis=0)
        np.testing.assert_allclose(seen, factor * base(), atol=0.05)


def test_interleaved_sine_pauses_rare_clients():
    p, profile = np.array([0.1, 0.9]), Sine(period=4, amplitude=0.3, cut=0.08)
    levels = np.array([profile.level(place, p) for place in range(4)])
    np.testing.assert_allclose(levels[:, 0], [0, 0.1, 0, 0])
    np.testing.assert_allclose(levels[:, 1], 0.9 * np.array([0.7, 1.0, 0.7, 0.4]))


def test_marginals_under_sampling_are_exact():
    process = Sampling(LabelProfile(LABELS, profile=Staircase(period=2, low=0.2)), size=1)
    rows = np.array(list(islice(process.rows(4, stream(2, "rows")), 20_000)))
    np.testing.assert_allclose(process.probs(4), rows.mean(axis=0), atol=0.015)


def test_settings_that_make_no_sense_are_refused():
    for make in (
        lambda: Staircase(period=1), lambda: Staircase(low=1.5), lambda: Sine(amplitude=0.6), lambda: Sine(cut=1.0),
        lambda: LabelProfile(LABELS, low=0.0), lambda: LabelProfile([[0, 0]]),
        lambda: LabelProfile(LABELS).probs(3),
    ):  # fmt: skip
        with pytest.raises(BadInput, match="got"):
            make()
