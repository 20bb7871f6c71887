"""Ranges: which numbers a setting may be, as a note in its type hint; `part` refuses all others."""

import operator
import re
from typing import Annotated, Any

import numpy as np

__all__ = [
    "Count", "Natural", "NotNegative", "NotNegativeFinite", "Positive", "PositiveFinite", "PositiveShare", "Range",
    "Share",
]  # fmt: skip

SIGNS = {
    "at least": operator.ge, "[": operator.ge, "above": operator.gt, "(": operator.gt,
    "at most": operator.le, "]": operator.le, "below": operator.lt, ")": operator.lt,
}  # fmt: skip


class Range:
    """The numbers that a setting may be, in the words of the sentence that refuses others.

    `rate: Annotated[float, Range("above 0 and at most 1")]`, also with "at least", "below", "finite" or
    "in [0, 1)". Infinity is above 0, but not finite.
    """

    def __init__(self, words: str) -> None:
        self.words = words
        limits = re.findall(r"(at least|above|at most|below|\[|\() ?(-?[\d.]+)", words)
        limits += [(sign, number) for number, sign in re.findall(r"(-?[\d.]+)(\]|\))", words)]
        limits += [("below", "inf")] if "finite" in words else []
        self.limits = [(SIGNS[sign], float(number)) for sign, number in limits]

    def __contains__(self, value: Any) -> bool:
        """Whether a number, or every number of an array, is in the range."""
        found = [holds(value, limit) for holds, limit in self.limits]
        return bool(np.all(found)) if isinstance(value, np.ndarray) else all(found)  # a number in no time


Count = Annotated[int, Range("at least 1")]
Natural = Annotated[int, Range("at least 0")]
Positive = Annotated[float, Range("above 0")]
PositiveFinite = Annotated[float, Range("above 0 and finite")]
NotNegative = Annotated[float, Range("at least 0")]
NotNegativeFinite = Annotated[float, Range("at least 0 and finite")]
Share = Annotated[float, Range("in [0, 1]")]
PositiveShare = Annotated[float, Range("in (0, 1]")]
