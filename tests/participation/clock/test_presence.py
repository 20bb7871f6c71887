"""When clients come and go, in seconds."""

from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedstale.participation.clock.presence import changes
from fedstale.participation.events import Switches


def test_at_the_end_of_a_recording_everybody_leaves_and_it_begins_again() -> None:
    clients, on = np.array([1, 0, 0, 1]), np.array([True, True, True, False])  # client 0 is there at the end
    record = Switches(10.0, np.array([1.0, 2.0, 3.0, 5.0]), clients, on)
    who: Any = SimpleNamespace(probs=lambda n: np.full(n, 0.5), switches=lambda n: record)
    found = islice(changes(who, 2, None, np.random.default_rng(0)), 8)
    lap = [(1.0, [1], []), (2.0, [0], []), (5.0, [], [1]), (10.0, [], [0])]
    expected = lap + [(10.0 + seconds, came, left) for seconds, came, left in lap]
    assert [(c.seconds, c.came.tolist(), c.left.tolist()) for c in found] == expected
