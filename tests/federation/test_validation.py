"""What a reply must be, and that nothing else gets through."""

import secrets

import numpy as np
import pytest

from fedstale.core import Local
from fedstale.federation.client.training import OneClient, train_on_order
from fedstale.federation.protocol.link import Body, Order
from fedstale.federation.protocol.validation import Rejected, check, largest_norm
from tests.federation import fuzz
from tests.federation.parts import TASK

ORDER = Order(1002, 2, 4, "token", "run", 1, Local(lr=0.1), TASK.init(0))


def test_an_honest_reply_is_accepted_bit_for_bit():
    body = train_on_order(TASK, ORDER)
    row = np.empty(TASK.d, np.float32)
    got = check(body, ORDER, row)
    assert got.update is row
    assert row.tobytes() == body.data
    assert got.norm == pytest.approx(np.linalg.norm(row))


def test_a_client_with_only_its_own_data_trains_the_same():
    class Own:
        """Client 2 of the task, as somebody who holds no other data has it: number 0."""

        n, d, weights, init, evaluate = 1, TASK.d, TASK.weights, TASK.init, TASK.evaluate

        def batches(self, client, local, rng):
            assert client == 0
            return TASK.batches(2, local, rng)

        def gradient(self, params, client, batch):
            assert client == 0
            return TASK.gradient(params, 2, batch)

    assert train_on_order(OneClient(Own()), ORDER) == train_on_order(TASK, ORDER)
    assert train_on_order(OneClient(TASK, 2), ORDER) == train_on_order(TASK, ORDER)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"t": 3}, "wrong round"),
        ({"t": 4.0}, "wrong round"),
        ({"client": 1}, "foreign client number"),
        ({"client": True}, "foreign client number"),
        ({"token": "earlier"}, "replayed"),
        ({"run": "another"}, "foreign run"),
        ({"dtype": "float64"}, "wrong type"),
        ({"stype": "numpy.ndarray"}, "wrong type"),
        ({"shape": (6,)}, "wrong shape"),
        ({"shape": (7, 1)}, "wrong shape"),
        ({"shape": None}, "wrong shape"),
        ({"data": b"\0" * 27}, "wrong size"),
        ({"data": b"\0" * 29}, "wrong size"),
        ({"data": None}, "wrong size"),
        ({"data": np.full(7, np.nan, "<f4").tobytes()}, "the update is not finite"),
        ({"data": np.full(7, -np.inf, "<f4").tobytes()}, "the update is not finite"),
        ({"loss": float("nan")}, "the loss is not a finite number"),
        ({"loss": 1e300}, "the loss is not a finite number"),
        ({"loss": 1}, "the loss is not a finite number"),
    ],
    ids=str,
)
def test_one_wrong_field_is_enough(change, reason):
    body = train_on_order(TASK, ORDER)._replace(**change)
    with pytest.raises(Rejected, match=reason):
        check(body, ORDER, np.empty(TASK.d, np.float32))


def test_nothing_at_all_is_rejected():
    with pytest.raises(Rejected):
        check(Body._make([None] * 9), ORDER, np.empty(TASK.d, np.float32))


def test_the_median_is_that_of_the_past_and_the_present():
    past = np.full(10, 2.0)
    assert largest_norm(past, [1e9], 20.0) == 40.0
    assert largest_norm(np.zeros(0), [1.0, 3.0, 1e9], 10.0) == 30.0
    assert largest_norm(past, [], 0.0) == float("inf")


def test_ten_thousand_hostile_replies_are_refused(tmp_path):
    """A fresh seed each run; it is printed, and `fuzz.fuzz(replies, seed, folder)` repeats it."""
    seed = secrets.randbelow(2**32)
    print(f"seed {seed}")
    found = fuzz.fuzz(10_000, seed, tmp_path)
    assert found["replies"] >= 10_000
    assert len(found["reasons"]) >= 12
