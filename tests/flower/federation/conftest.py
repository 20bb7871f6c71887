"""A kill of a process, real or played, needs no disk flush to be survived: tests do without."""

import os

import pytest


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)
