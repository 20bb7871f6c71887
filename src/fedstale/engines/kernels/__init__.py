"""Compiled loops for what numpy and torch are slow at, where numba is installed."""

from functools import cache
from importlib import import_module
from typing import Any


@cache
def load(name: str, *case: str) -> Any:
    """The compiled module `name` of this package, or None where it cannot be used and numpy does the work.

    That is without numba, without a place to keep what it compiles, or where the module's `agrees` finds
    that a small `case` (a type of numbers) does not come out as in numpy.
    """
    try:
        module = import_module(f"fedstale.engines.kernels.{name}")
        return module if module.agrees(*case) else None
    except Exception:  # a compiler that is broken or too new fails in many ways
        return None
