"""Real processes on the loopback: a link, a server's app and three clients. A minute or two each."""

import io
import secrets

import pytest

pytest.importorskip("flwr", reason="flwr is not installed; `make test-flower` runs these in their own environment")

from fedstale.core import BadInput
from fedstale.flower.federation import settings
from fedstale.flower.federation.ops import launcher, processes, runner
from fedstale.flower.federation.server.diagnostics import trace
from fedstale.flower.federation.state.manifest import read_metrics
from tools import federation_chaos as chaos
from tools import federation_hosts as hosts

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A server that is slow to start, on a machine that does other things too, is not submitted again."""
    monkeypatch.setattr(runner, "STARTUP", chaos.PATIENT)


@pytest.mark.parametrize(("tls", "isolated"), [(True, False), (True, True), (False, False)])
def test_a_federation_ends_with_the_bits_of_a_simulation(tmp_path, tls, isolated):
    s = settings.check(tmp_path, {"name": "none", "rounds": 1, "local": {"lr": 0.1}})
    try:
        s = chaos.prepare(tmp_path / "f", rounds=3, tls=tls, isolated=isolated, deadline=chaos.PATIENT)
        assert s.file.strategy == "auto"  # what `init` writes
        events = []
        for event in runner.run(s):
            events.append(event.kind)
            if event == ("round", 1, ""):
                processes.stop(s.folder, "client-2")  # one goes, and the rounds go on
                commands = [
                    processes.command(pid) for pid in processes.family(s.folder, "link" + processes.EXECUTOR)
                ]
                assert any("--token-file" in command for command in commands)  # which others can read
                assert not any("--token" in command.replace("--token-file", "") for command in commands)
        lines = read_metrics(s.state)
        assert events.count("submitted") == 1
        assert lines[-1]["fingerprint"] == chaos.replayed(s)
        _, table = trace(lines)
        assert table[:, :2].all()
        assert table[0].all()
        assert not table[2, 2]
        assert not [p for p in [s.state, *s.state.rglob("*")] if p.stat().st_mode & 0o077]  # clients' updates
        with pytest.raises(BadInput, match="is running already"):
            launcher.start_client(s, 0)
    finally:
        launcher.stop_all(s, patience=3.0)
    assert not any(processes.pid_of(s.folder, name) for name in ("link", "client-0", "client-1"))


def test_chaos_in_short(tmp_path, monkeypatch):
    """The full version is `python -m tools.federation_chaos --kills 100`."""
    monkeypatch.setattr(chaos, "OUTAGE", chaos.PATIENT)  # how long an outage lasts is the full version's question
    seed = secrets.randbelow(2**32)
    print(f"seed {seed}")
    found = chaos.chaos(tmp_path / "f", kills=3, seed=seed, out=io.StringIO(), pause=5.0)
    assert found["kills"] == 3
    assert found["equal to the undisturbed run"]


def test_separate_hosts_in_short(tmp_path):
    """The full version is `python -m tools.federation_hosts`."""
    if why := hosts.refused():
        pytest.skip(why)
    hosts.play(tmp_path, short=True)
