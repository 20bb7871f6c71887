"""Hostile settings are refused in one sentence; `python -m tools.settings_fuzz` tries more of them."""

import warnings

import pytest

from tools.settings_fuzz import CLASSES, cases, verdict


@pytest.mark.parametrize("block", range(4))
def test_hostile_settings_give_a_valid_object_or_one_sentence(block: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {name: verdict(case) for name, case in cases(1000 + block, 150)}
    assert {*found.values()} == {"valid", "refused"}, [v for v in found.values() if v not in ("valid", "refused")]


def test_the_fuzzer_knows_the_parts_of_every_table() -> None:
    assert {"FedStale", "Sampling", "Transitions", "Packets", "Projection", "Int8", "Shares", "ExitCNN"} <= {
        cls.__name__ for _, cls in CLASSES
    }
