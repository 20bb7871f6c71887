"""A state tree comes back with its types and bits."""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedstale.core import BadInput, SavesItself
from fedstale.lab.runs.codec import pack, unpack


class Inner(NamedTuple):
    array: Any
    count: int


@dataclass
class Outer:
    inner: Inner
    table: dict[str, Any]
    items: list[Any]
    nothing: None = None


def sample(fill: float) -> Outer:
    inner = Inner(np.full((2, 3), fill, np.float32), int(fill))
    return Outer(inner, {"a": np.arange(3), "b": fill}, [np.float64(fill), True, "word", (1, np.zeros(0))])


def again(tree: Any, like: Any) -> Any:
    arrays: dict[str, Any] = {}
    return unpack(json.loads(json.dumps(pack(tree, "", arrays))), like, "", arrays.__getitem__)


def test_a_state_comes_back_with_its_types_and_bits() -> None:
    found = again(sample(7.5), sample(0.0))
    assert type(found) is Outer
    assert type(found.inner) is Inner
    np.testing.assert_array_equal(found.inner.array, np.full((2, 3), 7.5, np.float32))
    assert found.inner.array.dtype == np.float32
    assert found.inner.count == 7
    assert found.table["b"] == 7.5
    np.testing.assert_array_equal(found.table["a"], np.arange(3))
    assert found.items[:3] == [7.5, True, "word"]
    assert found.items[3][0] == 1
    assert found.nothing is None


class Secret:
    """It keeps a list and saves it as one array."""

    def __init__(self, words: list[int]) -> None:
        self.words = words

    def saved(self) -> Any:
        return {"words": np.array(self.words)}

    def restored(self, saved: Any) -> "Secret":
        return Secret(saved["words"].tolist())


def test_an_object_chooses_its_own_serialised_form() -> None:
    assert isinstance(Secret([]), SavesItself)
    assert again([Secret([3, 4])], [Secret([])])[0].words == [3, 4]


def test_a_state_that_is_not_plain_is_refused() -> None:
    with pytest.raises(BadInput, match="a state holds arrays, numbers"):
        pack({"generator": np.random.default_rng(0)}, "", {})
