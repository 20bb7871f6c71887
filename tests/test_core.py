"""Parts are values: printable, comparable, hashable, picklable, also with arrays in them."""

import copy
import dataclasses
import itertools
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fedstale as fs
from fedstale.core import BadInput, Local, Round, part, require, weighted_sum

arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.bool_]),
    hnp.array_shapes(max_dims=2, max_side=3),
    elements=st.integers(0, 1),
)


@part
class Thing:
    name: str
    table: object = None


@part
class OtherThing:
    name: str
    table: object = None


@given(st.sampled_from("ab"), arrays | st.none(), st.sampled_from("ab"), arrays | st.none())
def test_parts_are_equal_when_their_settings_are(x: str, table: object, y: str, other: object) -> None:
    same = x == y and (np.array_equal(table, other) if table is not None and other is not None else table is other)
    first, second = Thing(x, table), Thing(y, other)
    assert (first == second) == same
    assert (first != second) != same
    if same:
        assert hash(first) == hash(second)


@given(st.sampled_from("ab"), arrays | st.none())
def test_copies_of_a_part_are_equal(name: str, table: object) -> None:
    thing = Thing(name, table)
    for again in (pickle.loads(pickle.dumps(thing)), copy.deepcopy(thing), dataclasses.replace(thing)):
        assert again == thing
        assert hash(again) == hash(thing)
        assert repr(again) == repr(thing)


def test_an_unknown_setting_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        BadInput, match=r"Local setting 'epoch' is unknown; did you mean 'epochs'\? known: lr, steps,"
    ):
        Local(lr=0.1, epoch=3)  # type: ignore[call-arg]
    with pytest.raises(BadInput, match="Thing setting 'tabel' is unknown; did you mean 'table'"):
        Thing("a", tabel=3)  # type: ignore[call-arg]


def test_parts_of_another_kind_differ() -> None:
    assert Thing("a") != OtherThing("a")
    assert Thing("a") != "a"
    assert len({Thing("a"), Thing("a"), Thing("b"), OtherThing("a")}) == 3


def test_parts_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Thing("a").name = "b"


def test_require_raises_the_sentence() -> None:
    require(True, "never said")
    with pytest.raises(BadInput, match=r"^x must be 1, got 2$"):
        require(False, "x must be 1, got 2")


@given(st.integers(0, 2**32), st.integers(0, 6), st.integers(1, 5))
def test_weighted_sum(seed: int, m: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    weights, rows = rng.random(m), rng.standard_normal((m, d)).astype(np.float32)
    wanted = [sum(float(weights[k]) * float(rows[k, j]) for k in range(m)) for j in range(d)]
    got = weighted_sum(weights, rows)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6 * (1 + m))


def a_round(arrived: np.ndarray) -> Round:
    clients = np.array([0, 2])
    return Round(
        t=3,
        params=np.zeros(2, np.float32),
        clients=clients,
        updates=np.where(arrived, np.array([[1, 2], [3, 4]], np.float32), np.float32(np.nan)),
        arrived=arrived,
        losses=np.zeros(2, np.float32),
        weights=np.array([0.5, 0.25, 0.25], np.float32),
        probs=np.array([0.5, 0, 1], np.float32),
    )


def test_received_is_zero_where_nothing_arrived() -> None:
    np.testing.assert_array_equal(a_round(np.array([[True, False], [True, True]])).received(), [[1, 0], [3, 4]])
    np.testing.assert_array_equal(a_round(np.array([[True], [False]])).received(), [[1, 2], [0, 0]])
    np.testing.assert_array_equal(a_round(np.ones((2, 1), bool)).received(), [[1, 2], [3, 4]])


def test_inverse_is_of_those_heard_from() -> None:
    np.testing.assert_array_equal(a_round(np.ones((2, 1), bool)).inverse(), [1.0, 0.25])  # client 1 has p = 0


@pytest.mark.parametrize(
    "settings",
    [{"lr": 0}, {"lr": float("nan")}, {"steps": 0}, {"batch": 0}, {"decay": -1}, {"prox": -1}],
)
def test_local_settings_are_checked(settings: dict[str, float]) -> None:
    (name, value), *_ = settings.items()
    with pytest.raises(BadInput, match=f"{name} must be .*, got {value}"):
        Local(**{"lr": 0.1, **settings})


@pytest.mark.parametrize("settings", [{"lr": "a"}, {"lr": None}, {"steps": 2.5}, {"batch": "8"}, {"prox": [1]}])
def test_local_settings_are_numbers(settings: dict[str, Any]) -> None:
    (name, value), *_ = settings.items()
    with pytest.raises(BadInput, match=f"{name} must be .*number, got {re.escape(repr(value))}"):
        Local(**{"lr": 0.1, **settings})
    assert Local(np.float32(0.5), np.int64(2)).rate(0) == 0.5


def test_local_training_is_printed_without_its_defaults() -> None:
    assert repr(Local(0.1)) == "Local(lr=0.1, steps=5)"
    assert repr(Local(0.1, epochs=2, momentum=0.9)) == "Local(lr=0.1, epochs=2, momentum=0.9)"


def test_the_local_rate_decays_with_the_rounds() -> None:
    assert [Local(0.1, decay=0.5).rate(t) for t in (0, 2, 8)] == pytest.approx([0.1, 0.05, 0.02])


def test_a_sentence_is_one_line_and_not_endless() -> None:
    assert str(BadInput("got a\nb")) == "got a b"
    assert len(str(BadInput("x" * 5000))) == 1001


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fs.TwoGroups("0.1"), "p_min must be a number, got '0.1'"),
        (lambda: fs.TwoGroups(True), "p_min must be a number, got true"),
        (lambda: fs.Bernoulli([0.5, "x"]), r"p must be a number or an array of numbers, got \[0.5, 'x'\]"),
        (lambda: fs.participation.Cyclic(groups=2.5), "groups must be a whole number, got 2.5"),
        (lambda: fs.channels.Loss(0.1, retries=fs.memory.Int8()), r"retries must be a whole number, got Int8"),
        (lambda: fs.participation.Sampling(fs.Bernoulli, 3), "base must be a Participation.*, got <class"),
        (lambda: fs.memory.Float32(folder="a\0b"), "folder must be a text"),
    ],
)
def test_the_types_of_settings_are_checked(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        make()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"steps": 3, "epochs": 1}, "steps and epochs contradict each other: give one of them"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"drop_last": True}, "drop_last needs epochs: steps use full batches"),
        ({"nesterov": True}, "nesterov needs a momentum above 0, got 0"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, got 1.0"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0 and finite, got -1.0"),
        ({"clip_norm": 0.0}, "clip_norm must be above 0 and finite, got 0.0"),
        ({"optimizer": "adagrad"}, "optimizer must be 'sgd', 'adam', 'adamw'"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum is a setting of optimizer 'sgd', got 'adam'"),
        ({"schedule": 3}, "schedule must be a Schedule"),
    ],
)
def test_local_settings_that_make_no_sense_are_refused(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        Local(0.1, **settings)  # type: ignore[arg-type]


def test_abilities_are_those_that_isinstance_finds() -> None:
    task = fs.Quadratic.random(3, 2)
    values = [task, fs.FedAvg(), fs.FedStale(0.5), fs.Bernoulli(0.5), fs.core.Clients(), np.zeros(2), None, 3, "x"]
    known = [of for of in map(vars(fs.core).get, fs.core.__all__) if getattr(of, "_is_runtime_protocol", False)]
    assert len(known) > 20
    for value, ability in itertools.product(values, known):
        assert fs.core.able(value, ability) == isinstance(value, ability), (value, ability)


@pytest.mark.parametrize("d", [1, 2, 7, 300])
def test_a_weighted_sum_is_added_row_after_row_however_few_numbers_there_are(d: int) -> None:
    rng = np.random.default_rng(d)
    for m, kind in itertools.product(range(9), (np.float32, np.float64)):
        weights, rows = rng.standard_normal(m), rng.standard_normal((m, d)).astype(kind)
        total = np.zeros(d)
        for weight, row in zip(weights.tolist(), rows, strict=True):
            total += weight * row
        assert weighted_sum(weights, rows).tobytes() == total.tobytes()
        assert weighted_sum(weights, np.asfortranarray(rows)).tobytes() == total.tobytes()


def test_a_rounds_average_is_over_what_arrived_of_each_coordinate() -> None:
    weights, updates = np.array([0.5, 0.1, 0.25, 0.15], np.float32), np.array([[1, 2, 3], [4, 8, 7]], np.float32)
    arrived = np.array([[True, True, False], [True, False, False]])
    r = Round(1, np.zeros(3, np.float32), np.array([0, 2]), updates, arrived, np.zeros(2), weights, weights)
    np.testing.assert_allclose(r.average(), [(0.5 * 1 + 0.25 * 4) / 0.75, 2, 0])
    whole = r._replace(arrived=np.ones((2, 1), np.bool_)).average()
    np.testing.assert_allclose(whole, (0.5 * updates[0] + 0.25 * updates[1]) / 0.75)
