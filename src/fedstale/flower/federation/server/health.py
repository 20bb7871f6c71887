"""Health and metrics of a running server over HTTP, for probes and Prometheus; on this machine only.

GET /health     200 while rounds are committed, 503 when none was for a while; JSON
GET /metrics    the numbers of status.json in Prometheus' text format
"""

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

log = logging.getLogger("fedstale.flower.federation")
NUMBERS = {  # name in a status → type and help of the metric
    "round": ("gauge", "The last committed round."),
    "voids": ("counter", "Rounds that were void because the infrastructure failed."),
    "heard_weight": ("gauge", "Share of the objective's weight that the last round heard."),
    "accuracy": ("gauge", "Accuracy on the clients' test samples at the last evaluation."),
    "test_loss": ("gauge", "Loss on the clients' test samples at the last evaluation."),
}
PER_CLIENT = {
    "heard": ("counter", "Rounds in which the client was heard."),
    "asked": ("counter", "Rounds in which the client was asked to train."),
    "rejected": ("counter", "Rounds in which the client's reply was rejected."),
    "staleness": ("gauge", "Rounds since the client was last heard."),
    "p": ("gauge", "Share of the client's rounds in which it was heard."),
}


class Health:
    """What is known of the server; `patience` is how many seconds may pass without a committed round."""

    def __init__(self, patience: float) -> None:
        self.patience, self.since, self.status = patience, time.monotonic(), dict[str, Any]()

    def update(self, status: dict[str, Any]) -> None:
        """A round was committed, with this status."""
        self.status, self.since = status, time.monotonic()

    def answer(self, path: str) -> tuple[int, str, str]:
        """The status code, the type and the text for a path."""
        idle = time.monotonic() - self.since
        if path == "/health":
            told = {"healthy": idle <= self.patience, "round": self.status.get("round"), "seconds": round(idle, 1)}
            return 200 if told["healthy"] else 503, "application/json", json.dumps(told) + "\n"
        if path == "/metrics":
            return 200, "text/plain; version=0.0.4; charset=utf-8", exposition(self.status, idle)
        return 404, "text/plain; charset=utf-8", "there is /health and /metrics\n"


def exposition(status: dict[str, Any], idle: float) -> str:
    """A status in Prometheus' text format; what is not known yet is left out."""
    lines = _metric("seconds_since_round", "gauge", "Seconds since a round was committed.", [("", round(idle, 3))])
    for name, (kind, meaning) in NUMBERS.items():
        lines += _metric(name, kind, meaning, [("", status.get(name))])
    for name, (kind, meaning) in PER_CLIENT.items():
        values = [(f'{{client="{row["client"]}"}}', row.get(name)) for row in status.get("clients", [])]
        lines += _metric(f"client_{name}", kind, meaning, values)
    return "".join(f"{line}\n" for line in lines)


def _metric(name: str, kind: str, meaning: str, values: list[tuple[str, float | None]]) -> list[str]:
    name = f"fedstale_{name}" + ("_total" if kind == "counter" else "")
    samples = [f"{name}{label} {value}" for label, value in values if value is not None]
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *samples] if samples else []


@contextmanager
def served(health: Health, port: int | None) -> Iterator[None]:
    """Answer on this port of this machine while the block runs; without a port, or if it is taken, do not."""
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), _handler(health)) if port is not None else None
    except OSError as error:  # no reason not to train
        log.error("no health on port %s: %s", port, error)
        server = None
    if server is None:
        yield
        return
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _handler(health: Health) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds, so that idle connections end

        def do_GET(self) -> None:
            code, kind, text = health.answer(self.path)
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Requests are not logged."""

    return Handler
