"""What all tests share: they are deterministic, and numbers do not depend on the machine's threads."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from tests.forks import FORKS

settings.register_profile("fedstale", derandomize=True, deadline=None, max_examples=40)
settings.register_profile("thorough", derandomize=True, deadline=None, max_examples=100)  # of `make test-slow`
settings.load_profile("fedstale")

ROOT = Path(__file__).parents[1]


class NoTorch:
    """Where torch is not installed, a test that imports it is skipped, and so is one whose module does."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name.partition(".")[0] == "torch":
            pytest.skip("needs torch", allow_module_level=True)


if not find_spec("torch"):
    sys.meta_path.append(NoTorch())


@pytest.fixture(autouse=True, scope="session")
def _quick() -> Iterator[None]:
    """Workers of a pool begin with all imports done; no disk is flushed, which no kill of a process asks for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedstale.engines.processes.pool.SPAWN", FORKS)
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """In a fresh clone, have the compiled loops made once, or every worker would make them all."""
    if not any(ROOT.glob("src/fedstale/engines/kernels/__pycache__/*.nbi")):
        command = [sys.executable, "-m", "tests.engines.kernels.compiled"]
        subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL)
