"""Arrays of every kind in a training: parameters go through the rule, buffers are averaged as in FedAvg."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg

import fedstale as fs
from fedstale.core import BadInput
from fedstale.flower import FedStale, Uneven
from fedstale.flower.arrays import BUFFERS, Layout, narrow, wide
from fedstale.flower.federation.protocol.arrays import Slot
from fedstale.simulate import Diverged
from tests.flower.direct import Direct, reply


def adding(amounts, examples=(1, 2, 3)):
    """Clients that add their amount to every array."""

    def answer(message, context):
        k = int(context.node_config["partition-id"])
        arrays = {}
        for name, a in message.content["arrays"].items():
            x = a.numpy()
            arrays[name] = (x + amounts[k]).astype(x.dtype)
        return reply(message, arrays, {"num-examples": examples[k]})

    return answer


def after(strategy, arrays, answer, rounds=1, n=3):
    record = ArrayRecord({name: Array(np.asarray(a)) for name, a in arrays.items()})
    return strategy.start(Direct(n, answer), record, num_rounds=rounds).arrays


def bfloat16(values):
    """As Flower can send it: NumPy has no such dtype, and saves the two bytes of each number."""
    made = Array(torch.tensor(values, dtype=torch.bfloat16).view(torch.int16).numpy().view("V2"))
    made.dtype = "bfloat16"
    return made


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_floating_point_type_is_trained_and_keeps_its_type(dtype):
    found = after(FedStale("fedavg", fraction_evaluate=0.0), {"w": np.ones((2, 3), dtype)}, adding([1, 1, 4]))["w"]
    assert (found.dtype, found.shape) == (dtype, (2, 3))
    assert found.numpy().tolist() == [[3.5] * 3] * 2  # 1 + (1 + 2 + 12) / 6


def test_bfloat16_is_trained():
    def answer(message, context):
        w = message.content["arrays"]["w"]
        assert w.dtype == "bfloat16"
        x = torch.from_numpy(w.numpy().view(np.int16)).view(torch.bfloat16)
        return reply(message, {"w": bfloat16((x + 1).tolist())}, {"num-examples": 1})

    strategy = FedStale("fedavg", fraction_evaluate=0.0)
    found = strategy.start(Direct(2, answer), ArrayRecord({"w": bfloat16([1.0, -2.5])}), num_rounds=2).arrays["w"]
    assert found.dtype == "bfloat16"
    assert wide(found.numpy()).tolist() == [3.0, -0.5]


def test_bfloat16_is_rounded_as_torch_rounds():
    bits = np.random.default_rng(1).integers(0x00800000, 0x7F000000, 2000).astype(np.uint32)
    ties = bits & np.uint32(0xFFFF0000) | np.uint32(0x8000)
    values = np.concatenate([bits, ties]).view(np.float32) * np.float32(-1)
    slot = Slot("w", "bfloat16", values.shape, True)
    assert np.array_equal(wide(narrow(values, slot)), torch.from_numpy(values).bfloat16().float().numpy())


def test_small_steps_add_up_in_half_precision():
    """The server keeps float32, of which clients get the nearest float16."""
    layout = Layout.of(ArrayRecord({"w": Array(np.ones(1, np.float16))}), BUFFERS)
    assert layout.cut(np.array([1.0004], np.float32))["w"].tolist() == [1.0]  # lost, if it were all there is
    amounts, given = [2**-10, 0, 0, 0], []

    def answer(message, context):
        w = message.content["arrays"]["w"].numpy()
        given.append(w.item())
        return reply(message, {"w": w + np.float16(amounts[context.node_id - 1000])}, {"num-examples": 1})

    plain = FedStale("fedavg", fraction_evaluate=0.0, defence=None)
    found = after(plain, {"w": np.ones(1, np.float16)}, answer, rounds=4, n=4)
    assert given[:8] == [1.0] * 8  # a quarter of a spacing each
    assert found["w"].numpy().item() == 1 + 2**-10


def test_an_array_that_leaves_the_range_of_its_type_stops_training():
    strategy = Uneven("unbiased", fraction_evaluate=0.0, estimator=fs.estimators.Known([0.1] * 3), defence=None)
    with pytest.raises(Diverged, match="'w' does not fit into float16"):
        after(strategy, {"w": np.full(1, 6e4, np.float16)}, adding([4e3] * 3))


def test_frozen_weights_keep_their_bits_and_tied_weights_stay_tied():
    frozen, tied = np.random.default_rng(0).standard_normal((2, 37)).astype(np.float32)

    def answer(message, context):
        arrays = {name: a.numpy() for name, a in message.content["arrays"].items()}
        arrays["tied"] = arrays["again"] = arrays["tied"] * np.float32(0.9) + context.node_id % 7
        return reply(message, arrays, {"num-examples": context.node_id})

    for rule in ("auto", "fedstale", "mifa", "unbiased"):
        found = after(
            FedStale(rule, fraction_train=0.7, fraction_evaluate=0.0),
            {"tied": tied, "frozen": frozen, "again": tied},
            answer,
            rounds=5,
        )
        assert np.array_equal(found["frozen"].numpy(), frozen)
        np.testing.assert_allclose(found["tied"].numpy(), found["again"].numpy(), rtol=1e-6)
        assert not np.array_equal(found["tied"].numpy(), tied)


def test_buffers_are_averaged_as_flower_does_and_not_divided_by_p():
    rng = np.random.default_rng(0)
    arrays = {
        "w": np.zeros(4, np.float32), "bn.running_mean": rng.standard_normal(5).astype(np.float32),
        "bn.running_var": np.ones(5), "bn.num_batches_tracked": np.array(7),
        "half.running_var": np.ones(3, np.float16), "mask": np.array([True, False]),
    }  # fmt: skip
    amounts = [0, 0.25, 9]
    known = fs.estimators.Known([0.01, 0.5, 0.5])
    rare = Uneven(fs.FedStale(beta=1.0), fraction_evaluate=0.0, estimator=known, defence=None)
    ours, theirs = (after(s, arrays, adding(amounts)) for s in (rare, FedAvg(fraction_evaluate=0.0)))
    assert np.abs(ours["w"].numpy()).max() > np.abs(theirs["w"].numpy()).max()
    for name in ("bn.running_mean", "bn.running_var", "half.running_var"):
        np.testing.assert_allclose(ours[name].numpy(), theirs[name].numpy(), rtol=2e-3 if "half" in name else 1e-6)
        assert ours[name].dtype == str(arrays[name].dtype)  # type: ignore[attr-defined]
    assert (ours["bn.num_batches_tracked"].dtype, ours["bn.num_batches_tracked"].numpy().item()) == ("int64", 12)
    assert theirs["bn.num_batches_tracked"].numpy().item() == pytest.approx(11.5)
    assert ours["mask"].numpy().tolist() == [True, True]


def test_other_names_of_buffers_can_be_given():
    arrays = {"w": np.zeros(2, np.float32), "net.scale": np.ones(2, np.float32)}
    known = fs.estimators.Known([0.1] * 3)
    strategy = Uneven("unbiased", fraction_evaluate=0.0, estimator=known, buffers=["*.scale"], defence=None)
    found = after(strategy, arrays, adding([1, 1, 1]))
    np.testing.assert_allclose(found["w"].numpy(), 10)
    np.testing.assert_allclose(found["net.scale"].numpy(), 2)


def test_a_round_without_replies_keeps_the_buffers():
    arrays = {"w": np.zeros(2, np.float32), "bn.running_mean": np.full(2, 3, np.float32)}
    strategy, grid = FedStale("auto", fraction_evaluate=0.0), Direct(3, lambda message, context: None)
    strategy.configure_train(1, ArrayRecord({name: Array(a) for name, a in arrays.items()}), ConfigRecord(), grid)
    found, _ = strategy.aggregate_train(1, [])
    assert found["bn.running_mean"].numpy().tolist() == [3, 3]


def test_a_transposed_array_is_read_as_it_is():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    answer = lambda m, c: reply(m, {"w": np.asfortranarray(x)}, {"num-examples": 1})  # noqa: E731
    found = after(FedStale("fedavg", fraction_evaluate=0.0), {"w": np.zeros((2, 3), np.float32)}, answer)
    assert np.array_equal(found["w"].numpy(), x)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"steps": np.zeros(2, np.int64)}, "must have a floating-point array to train"),
        ({"bn.running_mean": np.zeros(2, np.float32)}, "must have a floating-point array to train"),
        ({"w": np.zeros(2, np.complex64)}, "must hold numbers, got complex64"),
        ({"w": np.array(["a"])}, "must hold numbers"),
        ({"w": np.array([np.nan], np.float32)}, "parameters are not finite"),
        ({"w": np.array([1e300])}, "parameters are not finite"),
    ],
)
def test_models_that_cannot_be_trained_are_refused(arrays, sentence):
    with pytest.raises(BadInput, match=sentence):
        after(FedStale("auto", fraction_evaluate=0.0), arrays, adding([1, 1, 1]))


@pytest.mark.parametrize("kind", [np.float16, np.float64, "bfloat16"])
@pytest.mark.parametrize("own", [np.float16, np.float32, np.float64])
def test_replies_of_another_floating_point_type_are_taken_and_the_model_keeps_its_own(own, kind):
    def answer(message, context):
        given = [2.0, -0.5]
        made = bfloat16(given) if kind == "bfloat16" else np.array(given, kind)
        return reply(message, {"w": made, "bn.running_mean": made}, {"num-examples": 1})

    arrays = {"w": np.zeros(2, own), "bn.running_mean": np.zeros(2, own)}
    found = after(FedStale("fedavg", fraction_evaluate=0.0), arrays, answer)
    for name in arrays:
        assert found[name].dtype == np.dtype(own).name
        assert found[name].numpy().tolist() == [2.0, -0.5]
