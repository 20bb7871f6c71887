"""Ray on this machine: one cluster of two CPUs for all tests, with the tasks of tests/engines."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedstale.engines.ray.cluster import ALONE, QUIET, connect

os.environ.update(QUIET | ALONE)  # before a test loads Ray
sys.path.insert(0, str(Path(__file__).parents[3]))  # also of the processes that Ray starts


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray leaves files and processes of its own to the garbage collector."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[object]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        ray, leave = connect(cpus=2)
        yield ray
        leave()
