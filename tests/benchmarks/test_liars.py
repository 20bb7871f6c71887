"""The table of attacks, in a short version."""

import liars
import pytest


@pytest.mark.slow
def test_three_flipped_signs_of_ten_clients_are_survived():
    plain, attacked, defended = liars.play(
        "dirichlet", liars.RULES["auto"],
        [(None, False, 7), (liars.ATTACKS["flip × 1, 3 frequent"], False, 7),
         (liars.ATTACKS["flip × 1, 3 frequent"], True, 7)],
    )  # fmt: skip
    assert attacked.accuracy < plain.accuracy - 0.2
    assert defended.accuracy > plain.accuracy - 0.05
    assert defended.refused < 0.01
