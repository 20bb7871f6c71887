"""Health, metrics and logs of a running server."""

import json
import logging
import urllib.error
import urllib.request

import pytest

from fedstale.flower.federation.ops.launcher import free_port
from fedstale.flower.federation.server import health as module
from fedstale.flower.federation.server.diagnostics import status
from fedstale.flower.federation.server.health import Health, exposition, served
from fedstale.flower.federation.state import audit
from tests.flower.federation.inprocess import InProcess
from tests.flower.federation.parts import TASK, N, played, server, table


def asked(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=600) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_probe_sees_whether_rounds_are_committed(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    health, port = Health(patience=60.0), free_port()
    with served(health, port):
        assert asked(port, "/health") == (200, '{"healthy": true, "round": null, "seconds": 0.0}\n')
        clock[0] = 61.0
        assert asked(port, "/health")[0] == 503
        health.update({"round": 4, "clients": []})
        assert json.loads(asked(port, "/health")[1]) == {"healthy": True, "round": 4, "seconds": 0.0}
        assert asked(port, "/metrics")[0] == 200
        assert asked(port, "/")[0] == 404
    with pytest.raises(urllib.error.URLError):
        asked(port, "/health")


def test_metrics_are_the_numbers_of_the_status(tmp_path):
    link = InProcess(TASK, range(N))
    s = server(tmp_path, link)
    rows = table(4)
    rows[:, 5] = False
    text = exposition(status(played(s, link, rows)[-1].state, s.rules.estimator) | {"heard_weight": 0.5}, 1.5)
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert samples["fedstale_round"] == "4"
    assert samples["fedstale_heard_weight"] == "0.5"
    assert samples["fedstale_seconds_since_round"] == "1.5"
    assert samples['fedstale_client_heard_total{client="0"}'] == str(int(rows[:, 0].sum()))
    assert samples['fedstale_client_heard_total{client="5"}'] == "0"
    assert 'fedstale_client_staleness{client="5"}' not in samples  # never heard
    assert text.count("# TYPE fedstale_client_heard_total counter\n") == 1
    assert text.endswith("\n")


def test_a_port_that_is_taken_does_not_keep_a_server_from_training(caplog):
    port = free_port()
    with served(Health(1.0), port), served(Health(1.0), port):
        assert "no health on port" in caplog.text
    with served(Health(1.0), None):
        pass


@pytest.fixture
def log():
    found = logging.getLogger("fedstale.flower.federation")
    before = list(found.handlers)
    yield found
    for handler in set(found.handlers) - set(before):
        found.removeHandler(handler)
        handler.close()


def test_logs_are_json_lines_for_their_owner_and_are_rotated(tmp_path, log, monkeypatch):
    monkeypatch.setattr(audit, "SIZE", 300)
    path = tmp_path / "logs" / "rounds.jsonl"
    audit.log_to(path)
    audit.log_to(path)
    for t in range(30):
        log.info("round %d: heard %s\nof all", t, [1, 2])
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("it failed")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[-1]["level"] == "error"
    assert "ValueError: why" in lines[-1]["traceback"]
    files = sorted(path.parent.iterdir())
    assert len(files) == audit.FILES + 1
    for file in (path.parent, *files):
        assert file.stat().st_mode & 0o077 == 0
    older = [json.loads(line)["message"] for line in files[1].read_text().splitlines()]
    assert older[-1] == "round 29: heard [1, 2]\nof all"
