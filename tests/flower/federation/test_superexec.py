"""The token of the server's app is in a file of its owner, not on a command line that every user can read."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed; `make test-flower` runs these in their own environment")

from fedstale.flower.federation.ops.superexec import Launcher

TELL = "import sys; print(open(sys.argv[2]).read(), sys.argv[3], sys.argv[1])"


def start(launcher):
    command = [sys.executable, "-c", TELL, "--token", "secret", "--insecure"]
    return launcher(command, stdout=subprocess.PIPE)


def test_a_token_is_in_a_file_that_goes_when_its_process_has_ended(tmp_path):
    (tmp_path / "old.token").write_text("of a process that was killed")
    launcher = Launcher(tmp_path)
    first = start(launcher)
    assert "secret" not in first.args
    (file,) = tmp_path.glob("*.token")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert first.communicate()[0].split() == [b"secret", b"--insecure", b"--token-file"]
    second = start(launcher)
    assert not file.exists()
    second.communicate()


def test_the_folder_is_made_for_its_owner(tmp_path):
    start(Launcher(tmp_path / "home")).communicate()
    assert stat.S_IMODE(Path(tmp_path / "home").stat().st_mode) == 0o700
