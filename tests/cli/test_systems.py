"""The command line on systems that lack something: macOS, Windows, a machine without torch."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedstale.__main__ import main
from fedstale.core import BadInput
from fedstale.flower.federation.ops import processes
from tests.cli.commands import QUADRATIC
from tests.lab.arena.small_suite import TOML
from tests.lab.papers.small_figure import small_figure

MACOS = """
import os, sys
for name in ("sched_getaffinity", "sched_setaffinity", "memfd_create"):
    delattr(os, name) if hasattr(os, name) else None
def refuse(event, what):
    if event in ("open", "os.listdir", "os.scandir") and str(what[0]).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", what[0])
sys.addaudithook(refuse)
"""
WITHOUT = "import sys; sys.modules[{!r}] = None"
SENTENCES = {
    "torch": "fedstale: this needs PyTorch, which is not installed; `pip install torch` installs it",
    "fcntl": "fedstale: fedstale stores runs on Linux and macOS, on Windows inside WSL: no fcntl here",
}


MANY = """
import json, sys
from fedstale.__main__ import main
if __name__ == "__main__":
    codes = []
    for words in json.loads(sys.argv[1]):
        sys.argv[1:] = words
        try:
            main()
            codes.append(0)
        except SystemExit as end:
            codes.append(end.code or 0)
    print(codes, file=sys.stderr)
"""


def started(folder: Path, system: str, *commands: list[str]) -> tuple[list[int], str]:
    """Commands in a Python, and in workers, that begin with this code: their exit codes, and what they say."""
    (folder / "sitecustomize.py").write_text(system)
    (folder / "many.py").write_text(MANY)
    given = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    words = [sys.executable, "many.py", json.dumps(commands)]
    done = subprocess.run(words, env=given, cwd=folder, capture_output=True, text=True)
    said, _, codes = done.stderr.rstrip().rpartition("\n")
    return json.loads(codes), said


def test_commands_do_without_what_macos_lacks(tmp_path: Path) -> None:
    files = {"try.toml": QUADRATIC, "small.toml": TOML, "figure.toml": small_figure(engine="serial", rounds=20)}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    codes, said = started(
        tmp_path,
        MACOS,
        ["--help"],
        ["run", "try.toml", "-c", "rounds=5", "-c", "engine=pool"],
        ["report", "runs"],
        ["reproduce", "figure.toml", "--scale", "smoke", "--seeds", "1", "--jobs", "1"],
        ["arena", "run", "small.toml", "--size", "smoke"],
    )
    assert codes == [0] * 5, said


@pytest.mark.skipif(not Path("/proc").exists(), reason="this system has no /proc")
def test_the_system_of_these_tests_has_neither(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(MACOS)
    look = "import os; print(hasattr(os, 'sched_getaffinity'), os.path.exists('/proc')); open('/proc/self/stat')"
    given = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", look], env=given, capture_output=True, text=True)
    assert done.stdout.split()[0] == "False"
    assert "No such file or directory: '/proc/self/stat'" in done.stderr


@pytest.mark.parametrize("missing", SENTENCES)
def test_what_is_missing_is_said_in_a_sentence_and_the_rest_works(missing: str, tmp_path: Path) -> None:
    (tmp_path / "try.toml").write_text(QUADRATIC)
    (tmp_path / "trace.csv").write_text("1,0\n0,1\n1,1\n1,0\n")
    needs = ["run", "demo" if missing == "torch" else "try.toml"]
    codes, said = started(tmp_path, WITHOUT.format(missing), ["--help"], ["list"], ["inspect", "trace.csv"], needs)
    assert codes == [0, 0, 0, 2], said
    assert said.endswith(SENTENCES[missing])
    assert "Traceback" not in said


def test_a_federation_needs_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path)
    with pytest.raises(BadInput, match="a federation needs Linux: this system has no /proc"):
        processes.started(os.getpid())


def test_commands_start_where_nothing_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no SIGHUP."""
    monkeypatch.delattr(signal, "SIGHUP")
    monkeypatch.setattr("fedstale.cli.app.main", lambda: None)
    before = signal.getsignal(signal.SIGTERM)
    try:
        main()
    finally:
        signal.signal(signal.SIGTERM, before)
