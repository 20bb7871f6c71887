"""The systemd units of a federation."""

import shutil
import subprocess

import pytest

from fedstale.core import BadInput
from fedstale.flower.federation.ops.launcher import units, write_units
from tests.flower.federation.parts import made


def test_there_is_a_unit_for_the_link_for_training_and_for_clients(tmp_path):
    found = units(made(tmp_path), user="federation")
    assert [*found] == ["test-link.service", "test-run.service", "test-client@.service"]
    for text in found.values():
        for limit in ("MemoryMax=", "TasksMax=", "LimitNOFILE=", "UMask=0077", "User=federation"):
            assert f"\n{limit}" in text
        assert f"\nReadWritePaths={tmp_path}\n" in text
    assert f"-m fedstale federation up {tmp_path} --foreground\n" in found["test-link.service"]
    assert "Requires=test-link.service\n" in found["test-run.service"]
    assert "RestartPreventExitStatus=2 5\n" in found["test-run.service"]
    assert f"join {tmp_path} %i --foreground\n" in found["test-client@.service"]


@pytest.mark.parametrize("user", ["a b", "a\nExecStart=/bin/false", "", "-x"])
def test_an_account_is_one_word(tmp_path, user, monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "")
    with pytest.raises(BadInput, match="--user must be the name of an account"):
        units(made(tmp_path), user=user)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
@pytest.mark.parametrize("folder", ["plain", "with a space", "100%"])
def test_systemd_finds_nothing_wrong(tmp_path, folder):
    (tmp_path / folder).mkdir()
    files = write_units(made(tmp_path / folder), tmp_path / "units", user="root")
    one = tmp_path / "units" / "test-client@3.service"
    shutil.copy(tmp_path / "units" / "test-client@.service", one)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *files[:2], one], capture_output=True, text=True, timeout=600
    )
    ours = [line for line in done.stderr.splitlines() if "test-" in line]
    assert (done.returncode, ours) == (0, [])


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_would_find_something_wrong(tmp_path):
    file, *_ = write_units(made(tmp_path), tmp_path / "units", user="root")
    file.write_text(file.read_text().replace("MemoryMax=80%", "MemoryMax=much"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", file], capture_output=True, text=True, timeout=600
    )
    assert "much" in done.stderr
