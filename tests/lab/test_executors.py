"""Cells side by side: what workers begin with."""

import os

import pytest

from fedstale.lab import executors


def test_a_worker_has_the_environment_of_the_process_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that it is forked from may be older."""
    asks = {**os.environ, "FEDSTALE_DATA": "/new"}
    monkeypatch.setenv("FEDSTALE_DATA", "/old")
    monkeypatch.setenv("FEDSTALE_OLD", "1")
    executors._begin(asks)
    assert os.environ["FEDSTALE_DATA"] == "/new"
    assert "FEDSTALE_OLD" not in os.environ
