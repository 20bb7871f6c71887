"""What a reply must be, and that nothing else gets through."""

from itertools import islice

import numpy as np
import pytest

from fedstale.core import BadInput, Local
from fedstale.flower.federation.client.training import OneClient, train_on_order
from fedstale.flower.federation.protocol.arrays import Packed, packed
from fedstale.flower.federation.protocol.link import Body, Order, check
from fedstale.tasks.quadratic import Quadratic
from tests.flower.federation.parts import TASK
from tools import federation_fuzz as fuzz

ORDER = Order(1002, 2, 4, "token", "run", 1, Local(lr=0.1), TASK.init(0))
UPDATE = train_on_order(TASK, ORDER).update


def test_an_honest_reply_is_accepted_bit_for_bit():
    body = train_on_order(TASK, ORDER)
    row = np.empty(TASK.d, np.float32)
    got = check(body, ORDER, row)
    assert got.update is row
    assert body.update.data.endswith(row.tobytes())
    assert packed(row) == body.update


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


def test_a_client_of_a_task_that_draws_by_round_is_told_the_round():
    class ByRound(Quadratic):
        def round_batches(self, t, client, local, rng):
            assert (t, client) == (4, 2)
            return islice(self.batches(client, local, rng), 1)

    task = ByRound(TASK.centers)
    assert train_on_order(OneClient(task, 2), ORDER) == train_on_order(task, ORDER)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"t": 3}, "wrong round"),
        ({"t": 4.0}, "wrong round"),
        ({"client": 1}, "foreign client number"),
        ({"client": True}, "foreign client number"),
        ({"token": "earlier"}, "replayed"),
        ({"run": "another"}, "foreign run"),
        ({"update": UPDATE._replace(dtype="float64")}, "'update' must be float32, got float64"),
        ({"update": UPDATE._replace(stype="fedstale/f4")}, "'update' is not serialised as a NumPy array"),
        ({"update": UPDATE._replace(shape=(6,))}, r"'update' must have the shape \(7,\), got \(6,\)"),
        ({"update": UPDATE._replace(shape=(7, 1))}, "must have the shape"),
        ({"update": UPDATE._replace(shape=(7.0,))}, "must have the shape"),
        ({"update": UPDATE._replace(shape=None)}, "'update' is no array"),
        ({"update": 3}, "'update' is no array"),
        ({"update": UPDATE._replace(data=UPDATE.data[:-1])}, "'update' is not what its header says"),
        ({"update": UPDATE._replace(data=UPDATE.data + b"0")}, "'update' is not what its header says"),
        ({"update": UPDATE._replace(data=b"0" * 28)}, r"'update' is not a .npy file"),
        ({"update": UPDATE._replace(data=None)}, "'update' is not serialised as a NumPy array"),
        ({"update": packed(np.full(7, np.nan, "<f4"))}, "'update' is not finite"),
        ({"update": packed(np.full(7, -np.inf, "<f4"))}, "'update' is not finite"),
        ({"loss": float("nan")}, "the loss is not a finite number"),
        ({"loss": 1e300}, "the loss is not a finite number"),
        ({"loss": 1}, "the loss is not a finite number"),
    ],
    ids=str,
)
def test_one_wrong_field_is_enough(change, reason):
    body = train_on_order(TASK, ORDER)._replace(**change)
    with pytest.raises(ValueError, match=reason):
        check(body, ORDER, np.empty(TASK.d, np.float32))


SENT = ORDER._replace(buffers=np.array([0.5, 2.0]))
PACKED = packed(np.array([1 / 3, 7.0]))


def test_buffers_are_accepted_bit_for_bit():
    body = train_on_order(TASK, ORDER)._replace(buffers=PACKED)
    assert check(body, SENT, np.empty(TASK.d, np.float32)).buffers.tolist() == [1 / 3, 7.0]
    asked = SENT._replace(train=False)  # a loss alone comes without buffers
    assert check(train_on_order(TASK, ORDER._replace(train=False)), asked, np.empty(0, np.float32)).buffers is None


@pytest.mark.parametrize(
    ("order", "buffers", "reason"),
    [
        (SENT, None, "no buffers"),
        (ORDER, PACKED, "buffers were not asked for"),
        (SENT, PACKED._replace(dtype="float32"), "'buffers' must be float64, got float32"),
        (SENT, PACKED._replace(shape=(3,)), "'buffers' must have the shape"),
        (SENT, PACKED._replace(data=PACKED.data[:-1]), "'buffers' is not what its header says"),
        (SENT, packed(np.array([np.nan, 0])), "'buffers' is not finite"),
        (SENT, Packed(None, None, None, None), "'buffers' is no array"),
        (SENT, 3, "'buffers' is no array"),
    ],
    ids=str,
)
def test_wrong_buffers_are_rejected(order, buffers, reason):
    body = train_on_order(TASK, ORDER)._replace(buffers=buffers)
    with pytest.raises(ValueError, match=reason):
        check(body, order, np.empty(TASK.d, np.float32))


def test_a_client_says_when_the_server_sends_other_buffers_than_its_model_has():
    with pytest.raises(BadInput, match=r"must send the 0 numbers of the buffers .*, got 2: let start return"):
        train_on_order(TASK, SENT)


def test_nothing_at_all_is_rejected():
    with pytest.raises(ValueError, match="foreign run"):
        check(Body._make([None] * 7), ORDER, np.empty(TASK.d, np.float32))


def test_hostile_replies_are_refused(tmp_path):
    """The full version, with a fresh seed each run, is `python -m tools.federation_fuzz`."""
    found = fuzz.fuzz(2_000, 7, tmp_path)
    assert found["replies"] >= 2_000
    assert len(found["reasons"]) >= 12
