"""The source distribution holds every file of the repository, tests and docs too: `make test-wheel`."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
pytestmark = pytest.mark.wheel


def test_the_source_distribution_is_whole(tmp_path: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a checkout: git does not say which files belong here")
    files = [name for name in tracked.stdout.split("\0") if name and (ROOT / name).exists()]
    for name in files:
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / "source" / name, follow_symlinks=False)
    build = [sys.executable, "-c", BUILD, str(tmp_path)]
    subprocess.run(build, cwd=tmp_path / "source", check=True, capture_output=True)
    with tarfile.open(*tmp_path.glob("fedstale-*.tar.gz")) as built:
        held = {name.partition("/")[2] for name in built.getnames()}
    assert {name for name in files if name not in held} == set()
    assert {"tests/conftest.py", "tests/cli/commands.py", "constraints.txt", "experiments/demo.toml"} < held
    assert not [name for name in held if "__pycache__" in name or name.endswith((".pyc", ".nbi"))]
