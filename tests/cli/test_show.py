"""`fedstale show`: one run, readable."""

from pathlib import Path

from tests.cli.commands import fedstale


def test_show_is_readable(file: Path, tmp_path: Path) -> None:
    assert fedstale("run", file, "--seeds", "1", "--out", tmp_path / "runs").returncode == 0
    text = fedstale("show", "fedstale", "--out", tmp_path / "runs").stdout
    assert "two-groups(p_min=0.3)" in text
    assert "{" not in text
