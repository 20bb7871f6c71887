"""Type hints: an alias is opened wherever it stands, as numpy's own are from Python 3.12 on."""

from collections.abc import Callable
from inspect import signature
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from typing_extensions import TypeAliasType

from fedstale import theory
from fedstale.core import BadInput, Range, Share, arguments_checked, part
from fedstale.core.parts import alternatives, fits, words
from fedstale.memory import Coding, Float32

A, B = TypeVar("A"), TypeVar("B")
NUMBERS = TypeAliasType("NUMBERS", npt.ArrayLike)
RATE = TypeAliasType("RATE", float | None)
LABEL = TypeAliasType("LABEL", RATE | str)
SWAPPED: Any = TypeAliasType("SWAPPED", tuple[B, A], type_params=(A, B))
TABLE: Any = TypeAliasType("TABLE", np.ndarray[Any, np.dtype[A]], type_params=(A,))


@pytest.mark.parametrize("array", [npt.ArrayLike, NUMBERS], ids=["numpy", "alias"])
def test_an_array_is_a_number_or_an_array_of_numbers_alone_and_in_a_union(array: Any) -> None:
    for hint in (array, array | None, array | Literal["local"]):
        assert [fits(hint, good) for good in (1, 0.5, [1.0, 2.0], np.ones(2))] == [True] * 4
        assert not any(fits(hint, bad) for bad in ("x", True, {}, [1.0, "x"]))
    assert fits(array | Literal["local"], "local")
    assert not fits(array | str, "x")  # numpy's hint has texts, and Python 3.11 cannot tell this one from it
    assert words(array | Literal["local"] | None) == "a number, an array of numbers or 'local'"


@pytest.mark.parametrize("hint", [int, str, float | None, Callable[[int], npt.ArrayLike], tuple[float, ...], dict])
def test_nothing_else_is_taken_for_an_array(hint: Any) -> None:
    assert not fits(hint, np.ones(2))
    assert "array" not in words(hint)


def test_aliases_are_opened_inside_each_other_and_with_their_own_parameters() -> None:
    assert alternatives(LABEL) == [float, type(None), str]
    assert words(LABEL) == "a number or a text"
    assert fits(LABEL, None)
    assert not fits(LABEL, [1.0])
    assert fits(SWAPPED[int, str], ("a", 1))
    assert not fits(SWAPPED[int, str], (1, "a"))
    assert fits(SWAPPED, (1, "a"))  # no parameters: anything
    assert fits(TABLE[np.float64], np.ones(2))
    assert not fits(TABLE[np.float64], [1.0])


def test_an_object_without_the_methods_of_a_protocol_is_not_what_it_asks_for() -> None:
    class Empty:
        pass

    class Passes:
        def __init__(self) -> None:
            self.inner = Float32()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    assert not fits(Coding, Empty())
    assert fits(Coding, Passes())


@pytest.mark.parametrize(
    ("words", "inside", "outside"),
    [
        ("at least 1", [1, 1.0, np.float32(2), np.inf], [0, 0.999, -1, np.nan]),
        ("above 0 and finite", [1e-300, 5], [0, -1, np.inf, np.nan]),
        ("above 0 and at most 1", [0.1, 1], [0, 1.1]),
        ("a share of at least 0 and below 0.5", [0, 0.49], [-0.1, 0.5]),
        ("in [0, 1]", [0, 1, 0.5], [-0.1, 1.1, np.nan]),
        ("in (0, 1]", [1e-9, 1], [0, 2]),
        ("in [-1, 1)", [-1, 0.9], [-1.1, 1]),
    ],
)
def test_the_words_of_a_range_say_which_numbers_it_has(words: str, inside: list[Any], outside: list[Any]) -> None:
    allowed = Range(words)
    assert all(x in allowed for x in inside)
    assert not any(x in allowed for x in outside)
    assert np.array(inside) in allowed
    assert np.array([*inside, outside[0]]) not in allowed


@part
class Ranged:
    """A part of a user's own."""

    gain: Annotated[float, Range("above 0")]
    share: Share | None = None

    def __post_init__(self) -> None:
        1 / self.gain


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Ranged(0), "gain must be above 0, got 0"),
        (lambda: Ranged(gain=1, share=1.5), r"share must be in \[0, 1\], got 1.5"),
        (lambda: Ranged(gain=float("nan")), "gain must be above 0, got nan"),
        (lambda: Ranged(gain="much"), "gain must be a number, got 'much'"),  # type: ignore[arg-type]
        (lambda: halved(2.0), r"share must be in \[0, 1\], got 2.0"),
        (lambda: halved(share=-1), r"share must be in \[0, 1\], got -1"),
    ],
)
def test_a_number_outside_its_range_is_refused_before_it_is_used(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(BadInput, match=f"^{sentence}$"):
        make()


def test_what_is_in_its_range_or_left_out_is_taken() -> None:
    assert halved(1) == 0.5
    assert (Ranged(2.0).share, Ranged(2.0, 1.0).share, Ranged(2.0, None).share) == (None, 1.0, None)


@arguments_checked
def halved(share: Share) -> float:
    return share / 2


def test_a_signature_says_which_numbers_a_setting_may_be() -> None:
    @part
    class Own:
        share: Share

    assert "Range('in [0, 1]')" in str(signature(Own))
    assert "beta: 'Share'" in str(signature(theory.limits)), "theory names its hints, for `help`"
