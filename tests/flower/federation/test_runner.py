"""How `run` sees that a server will never begin; test_settings.py has runs that are played by a script."""

import pytest

from fedstale.flower.federation import settings
from fedstale.flower.federation.ops import control, processes, runner

RAW = {"name": "x", "rounds": 3, "local": {"lr": 0.1}}


@pytest.fixture
def s(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "LOOK", 0.0)
    made = settings.check(tmp_path, RAW)
    yield made
    processes.stop(tmp_path, *processes.names(tmp_path), hard=True, patience=5.0)


def linked(monkeypatch, *answer):
    def state(s, number):
        if not answer:
            raise control.Refused("gone")
        return answer

    monkeypatch.setattr(control, "run_state", state)


@pytest.mark.parametrize(
    ("answer", "app", "why"),
    [
        (("pending", ""), False, ""),  # the executor has not taken it yet
        (("running", ""), False, "was killed before its first round"),
        (("starting", ""), False, "was killed before its first round"),
        (("running", ""), True, ""),
        (("finished", "failed"), False, "ended before its first round: failed"),
        ((), False, ""),  # the link is being started again
    ],
)
def test_a_server_that_died_before_it_began_is_not_waited_for(s, monkeypatch, answer, app, why):
    processes.spawn(
        s.folder, "link-executor", ["sh", "-c", "sleep 3600; : flwr-serverapp" if app else "sleep 3600"]
    )
    linked(monkeypatch, *answer)
    assert runner._stillborn(s, 7, runner.GRACE + 1) == why
    assert runner._stillborn(s, 7, runner.GRACE) == ""
    assert "has not begun" in runner._stillborn(s, 7, runner.STARTUP + 1)


def test_an_executor_that_was_not_started_here_is_trusted(s, monkeypatch):
    linked(monkeypatch, "running", "")
    assert runner._stillborn(s, 7, runner.GRACE + 1) == ""
