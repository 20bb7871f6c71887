"""A run without rounds that is killed goes on to the same bytes."""

import random
from pathlib import Path

from tests.participation.clock.kills import trial


def test_a_killed_asynchronous_run_is_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    kills, same = trial(
        "fedasync", tmp_path, random.Random(2)
    )  # `python -m tests.participation.clock.kills` kills twenty times
    assert kills >= 1
    assert same
