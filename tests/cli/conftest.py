from pathlib import Path

import pytest

from tests.cli.commands import QUADRATIC


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "try.toml"
    path.write_text(QUADRATIC)
    return path
