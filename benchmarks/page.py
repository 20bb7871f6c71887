"""Measures the live page: a store of 10,000 runs, and a run of 100,000 rounds, in Chromium where it is installed.

    python benchmarks/page.py [--runs 10000] [--rounds 100000]

It prints the seconds until the list is painted and until the long run is drawn, the memory of the server, and the
share of the machine's processors that the server takes while fifteen runs are computed and somebody watches them.
Where other programs keep the machine busy, the processor time of page and server says more than the clock.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.lab.runs.store import open_store, run_name

SCORES = ("accuracy", "loss", "objective")


def config(label: str, seed: int, rounds: int, setting: int) -> dict[str, Any]:
    """The configuration of a run that nobody computes."""
    return {
        "rounds": rounds, "engine": "batched", "data": {"dataset": "digits", "clients": 24, "seed": setting},
        "participation": {"kind": "two-groups", "p_min": 0.1}, "model": {"kind": "linear"}, "label": label,
        "strategy": {"kind": "fedavg"}, "estimator": {"kind": "known"}, "server": {"kind": "sgd", "lr": 1.0},
        "channel": {"kind": "lossless"}, "local": {"lr": 0.1, "steps": 5, "batch": 32}, "seed": seed,
    }  # fmt: skip


def write_run(store: Path, label: str, seed: int, rounds: int, setting: int, lines: list[dict[str, Any]]) -> None:
    """A finished run with these lines of metrics."""
    made = config(label, seed, rounds, setting)
    folder = store / run_name(label, seed, made)
    folder.mkdir()
    last = {name: dict.fromkeys(("final", "last10", "best"), lines[-1][name]) for name in SCORES}
    result = last | {"rounds": rounds, "refused": 0, "fingerprint": "0", "seconds": 1.0, "rounds_per_second": 100.0}
    status = {"round": rounds, "rounds": rounds, "seconds": 1.0, "parameters": 650, "marks": [[rounds, 1.0]]}
    where = {"command": "fedstale run try.toml", "started": "2026-01-01T00:00:00Z", "python": "3", "packages": {}}
    for name, value in (("config", made), ("environment", where), ("status", status), ("result", result)):
        (folder / f"{name}.json").write_text(json.dumps(value))
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)


def metrics(rounds: int, every: int) -> list[dict[str, Any]]:
    """Lines as a run of 24 clients writes them."""
    here, found = np.random.default_rng(1).random((rounds, 24)) < 0.5, []
    for t in range(1, rounds + 1):
        who = np.flatnonzero(here[t - 1]).tolist()
        line: dict[str, Any] = {
            "round": t, "available": len(who), "participants": len(who), "refused": 0,
            "heard_weight": len(who) / 24,
            "train_loss": 1 / t, "step_norm": 1 / t, "staleness": [1.0, 3.0, 8.0], "heard": who,
        }  # fmt: skip
        if t % every == 0 or t > rounds - 10:
            line |= {"accuracy": 1 - 1 / (1 + t), "loss": 1 / t, "objective": 1 / t, "weights": [1 / 24] * 24}
        found.append(line)
    return found


def megabytes(pid: int) -> float:
    """The resident memory of a process, at its highest."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) / 1024


def look(url: str, selector: str, then: str = "") -> tuple[float, float]:
    """Seconds from opening an address until something is painted, and of the processor for the page.

    With `then`, of the same from a click on its first link, when the library of the plots is there.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page()
        page.set_default_timeout(60_000)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        begun, before = time.monotonic(), 0.0
        page.goto(url)
        page.wait_for_selector(selector)
        if then:
            while not page.evaluate("Boolean(window.Plotly)"):  # the content policy forbids wait_for_function
                page.wait_for_timeout(50)
            begun, before = time.monotonic(), page_seconds(session)
            page.locator("tbody a").first.click()
            page.wait_for_selector(then)
        seconds, taken = time.monotonic() - begun, page_seconds(session) - before
        browser.close()
    return seconds, taken


def page_seconds(session: Any) -> float:
    """The processor time that the process of a page has taken."""
    found = session.send("Performance.getMetrics")["metrics"]
    return float(next(m["value"] for m in found if m["name"] == "ProcessTime"))


def measured(store: Path, then: str = "") -> tuple[float, str, float]:
    """Seconds in the browser, processor seconds of the page and the server, and the memory of the server."""
    command = [sys.executable, "-m", "fedstale", "ui", str(store), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        url = server.stdout.readline().split()[0]
        time.sleep(1)
        before = processor_seconds(server.pid)
        seconds, page = look(url, "tbody tr", then)
        taken = f"processor time: {page:.2f} s page, {processor_seconds(server.pid) - before:.2f} s server"
        if not then:  # all pages of the list are looked at once
            for _ in range(3):
                look(url + "/#/runs?sort=value&q=fedavg", "tbody tr")
        size = megabytes(server.pid)
        server.terminate()
    return seconds, taken, size


def watched(folder: Path, seconds: float = 20.0) -> float:
    """The share of the machine that the server takes while the demo is computed and its page is open."""
    from playwright.sync_api import sync_playwright

    run = [sys.executable, "-m", "fedstale", "run", "demo", "-c", "rounds=100000", "-o", str(folder)]
    ui = [sys.executable, "-m", "fedstale", "ui", str(open_store(folder)), "--port", "0"]
    with (
        subprocess.Popen(run, stderr=subprocess.DEVNULL) as training,
        subprocess.Popen(ui, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as p,
    ):
        assert server.stdout
        browser = p.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.goto(server.stdout.readline().split()[0])
        page.locator("tbody a").first.click()
        page.wait_for_selector("html[data-drawn]")
        before = processor_seconds(server.pid)
        page.wait_for_timeout(1000 * seconds)
        taken = processor_seconds(server.pid) - before
        browser.close()
        training.kill()
        server.terminate()
    return taken / seconds / (os.cpu_count() or 1)


def processor_seconds(pid: int) -> float:
    """The processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Make both stores, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=100_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        many, long = (open_store(Path(folder) / name) for name in ("many", "long"))
        few = metrics(20, 2)
        for k in range(asked.runs):
            write_run(many, f"fedavg {k % 5}", k // 5 % 5, 20, k // 25, few)
        write_run(long, "fedavg", 1, asked.rounds, 0, metrics(asked.rounds, 2000))
        for about, store, then in (
            (f"{asked.runs} runs: the list is painted", many, ""),
            (f"a run of {asked.rounds} rounds: drawn", long, "html[data-drawn]"),
        ):
            seconds, taken, size = measured(store, then)
            print(f"{about} after {seconds:.2f} s ({taken}); the server takes {size:.0f} MB")
        share = watched(Path(folder) / "watched")
        print(f"watching fifteen runs takes {share:.1%} of the machine")


if __name__ == "__main__":
    main()
