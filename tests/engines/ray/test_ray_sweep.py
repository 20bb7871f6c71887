"""`fedstale reproduce --executor ray`: the bytes of one machine, whatever dies on the way."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

pytest.importorskip(
    "ray.exceptions", reason="ray is not installed; `make test-ray` runs these in their own environment"
)

from fedstale.core import BadInput
from fedstale.lab import executors
from fedstale.lab.papers.figure import cells, read
from fedstale.lab.papers.results import write
from fedstale.lab.plan import planned
from fedstale.lab.runs import store
from tests.engines.ray.processes import below, gone, title
from tests.lab.papers.small_figure import small_figure

FIGURE = small_figure(seeds="[1]", rounds=2000, engine="serial", algorithms='["unbiased", "fedau"]', tune="")
COMMAND = [sys.executable, "-c", "from fedstale.cli.app import main; main()", "reproduce"]


@pytest.fixture(scope="module")
def figure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("figure") / "small.toml"
    path.write_text(FIGURE)
    return path


def results(out: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(out.iterdir()) if p.suffix in (".csv", ".txt")}


@pytest.fixture(scope="module")
def wanted(figure: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    found = swept(figure, tmp_path_factory.mktemp("here"), executors.Executor.processes)
    assert len(found) == 5
    return found


def swept(
    path: Path, out: Path, executor: executors.Executor, lines: list[str] | None = None, resume: bool = False
) -> dict[str, bytes]:
    figure = read(str(path), "smoke")
    found, told = planned(cells(figure), store.open_store(out / "runs")), [] if lines is None else lines
    executors.compute(found, jobs=1, resume=resume, command="", say=told.append, executor=executor)
    write(figure, found, out, "png")
    return results(out)


def victims() -> list[int]:
    """Processes of the cluster that compute a cell."""
    return [pid for pid in below(os.getpid()) if title(pid).startswith("ray::_visit")]


def test_same_bytes_and_progress(
    cluster: Any, figure: Path, wanted: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(executors, "REPORT_SECONDS", 0.05)
    assert swept(figure, tmp_path, executors.Executor.ray, lines) == wanted
    assert lines
    assert all(" rounds, " in line for line in lines)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGTERM])
def test_a_cell_whose_process_ends_is_taken_up_again(
    cluster: Any, figure: Path, wanted: dict[str, bytes], tmp_path: Path, blow: signal.Signals
) -> None:
    struck: list[int] = []

    def strike(out: Path, done: Event) -> None:
        while not (struck or done.is_set()):
            struck.extend(victims() if list(out.glob("runs/*/metrics.jsonl")) else ())
            time.sleep(0.01)
        for pid in struck:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, blow)

    for k in itertools.count():  # on a busy machine a sweep may end before anybody looks at it
        done = Event()
        killer = Thread(target=strike, args=(tmp_path / str(k), done))
        killer.start()
        assert swept(figure, tmp_path / str(k), executors.Executor.ray) == wanted
        done.set()
        killer.join()
        if struck:
            break


@pytest.fixture
def short() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are too long for the names of sockets
        yield folder


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_in_good_order(
    cluster: Any, figure: Path, wanted: dict[str, bytes], tmp_path: Path, short: str, blow: signal.Signals
) -> None:
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {"TMPDIR": short}
    words = [*COMMAND, str(figure), "--scale", "smoke", "--executor", "ray", "--jobs", "2", "--out", str(tmp_path)]
    heard = partial(signal.signal, blow, signal.SIG_DFL)  # a job in the background inherits that SIGINT is ignored
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env, preexec_fn=heard) as process:
        while not list(tmp_path.glob("runs/*/metrics.jsonl")) and process.poll() is None:
            time.sleep(0.01)
        family = below(process.pid)
        process.send_signal(blow)
        _, told = process.communicate(timeout=600)
    assert process.returncode == 130, told
    assert "--resume goes on from here" in told
    assert gone(family)
    assert list(tmp_path.glob("runs/*/checkpoint.npz"))
    assert len(list(tmp_path.glob("runs/*/result.json"))) < 6
    with pytest.raises(BadInput, match="add --resume"):
        swept(figure, tmp_path, executors.Executor.ray)
    assert swept(figure, tmp_path, executors.Executor.ray, resume=True) == wanted


def test_cells_do_not_wait_for_places_that_they_take_themselves(figure: Path, tmp_path: Path) -> None:
    path = tmp_path / "nested.toml"
    path.write_text(FIGURE.replace('engine = "serial"', 'engine = "ray"'))
    with pytest.raises(BadInput, match="another engine, got engine 'ray'"):
        swept(path, tmp_path, executors.Executor.ray)
