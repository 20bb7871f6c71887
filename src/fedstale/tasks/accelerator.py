"""Compiled loops for what torch is slow at, where numba is installed."""

from functools import cache
from importlib import import_module
from typing import Any


@cache
def accelerator() -> Any:
    """The compiled loops, if numba is installed and has a place to keep what it compiles."""
    try:
        return import_module("fedstale.tasks.fused")
    except (ImportError, RuntimeError):
        return None
