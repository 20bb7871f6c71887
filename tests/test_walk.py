"""How many modules a reader of the code walks through: the numbers may fall, and are lowered here when they do."""

import subprocess
import sys

import pytest

COUNT = "from tools import walk; print(len(walk.walked(walk.{})))"


@pytest.mark.parametrize(("play", "most"), [("readme", 19), pytest.param("demo", 69, marks=pytest.mark.slow)])
def test_a_walk_through_the_code_is_short(play: str, most: int) -> None:
    code = [sys.executable, "-W", "ignore", "-c", COUNT.format(play)]
    found = subprocess.run(code, capture_output=True, text=True, check=True)
    assert int(found.stdout.split()[-1]) <= most
