"""The table of attacks, in a short version."""

import liars
import liars_root
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


@pytest.mark.slow
def test_root_data_refuse_three_rare_liars_and_nobody_else():
    case = liars_root.Case("dirichlet", "flip × 1, 3 rare", True, 7)
    ((accuracy, _, honest, lies),) = liars_root.play([case])
    assert (honest, lies) == (0, 1)
    assert accuracy > 0.85
