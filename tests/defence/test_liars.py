"""Liars send a multiple of their update."""

import numpy as np
import pytest

import fedstale as fs
from fedstale.core import BadInput


def test_liars_send_a_multiple_of_their_update_from_a_round_on():
    reply = fs.core.Reply(np.ones((3, 2), np.float32), np.zeros(3, np.float32))
    liars = fs.defence.Liars((4, 9), factor=-15.0, since=2)
    clients = np.array([1, 4, 7])
    assert liars.sent(reply, clients, 1) is reply
    assert liars.sent(reply, clients, 2).updates.tolist() == [[1, 1], [-15, -15], [1, 1]]
    assert liars.sent(reply, np.array([1, 2, 3]), 2) is reply
    assert reply.updates.min() == 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"clients": ()}, "clients must be different numbers of clients"),
        ({"clients": (1, 1)}, "clients must be different numbers of clients"),
        ({"clients": (-1,)}, "clients must be different numbers of clients"),
        ({"clients": (1,), "factor": float("nan")}, "factor must be finite, got nan"),
        ({"clients": (1,), "since": 0}, "since must be at least 1, got 0"),
    ],
)
def test_liars_that_cannot_be_are_refused(settings, sentence):
    with pytest.raises(BadInput, match=sentence):
        fs.defence.Liars(**settings)
