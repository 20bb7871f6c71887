"""Compiled loops for what numpy and torch are slow at, where numba is installed."""

from functools import cache
from importlib import import_module
from typing import Any


@cache
def load(name: str) -> Any:
    """The compiled module `name` of this package, or None without numba or a place to keep what it compiles."""
    try:
        return import_module(f"fedstale.kernels.{name}")
    except (ImportError, RuntimeError):
        return None
