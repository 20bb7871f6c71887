"""What all tests share: they are deterministic, and numbers do not depend on the machine's threads."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

settings.register_profile("fedstale", derandomize=True, deadline=None)
settings.load_profile("fedstale")

ROOT = Path(__file__).parents[1]


def pytest_configure(config: pytest.Config) -> None:
    """Flat names of before 0.1.0 warn for a release, and tests may still write them."""
    config.addinivalue_line("filterwarnings", "ignore:fs[.].* is now fs[.]:FutureWarning")


class NoTorch:
    """Where torch is not installed, a test that imports it is skipped, and so is one whose module does."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name.partition(".")[0] == "torch":
            pytest.skip("needs torch", allow_module_level=True)


if not find_spec("torch"):
    sys.meta_path.append(NoTorch())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """In a fresh clone, have the compiled loops made once, or every worker would make them all."""
    if not any(ROOT.glob("src/fedstale/engines/kernels/__pycache__/*.nbi")):
        command = [sys.executable, "-m", "tests.engines.kernels.compiled"]
        halves = (["convolutional"], ["rows", "linear"])  # as long as each other; linear finds parts of the other
        made = [subprocess.Popen([*command, *half], cwd=ROOT, stderr=subprocess.DEVNULL) for half in halves]
        for process in made:
            process.wait()
