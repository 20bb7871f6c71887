"""`fedstale ui`: which folders it shows and which it refuses."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedstale.cli import app
from fedstale.core import BadInput
from fedstale.lab.runs.named import store_of
from fedstale.lab.runs.store import MARKER, open_store
from tests.cli.commands import fedstale


def test_a_store_the_output_of_a_figure_or_what_becomes_one_is_shown(tmp_path: Path) -> None:
    store = open_store(tmp_path / "figure" / "runs")
    (store / "run").mkdir()
    (store / "run" / "config.json").write_text("{}")
    assert store_of(store) == store_of(tmp_path / "figure") == store_of(store / "run") == store
    assert store_of(tmp_path / "later") == tmp_path / "later"


def test_another_folder_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    for place in (tmp_path, tmp_path / "letter.txt"):
        with pytest.raises(BadInput, match=f"is not a fedstale store: it has no {MARKER}"):
            store_of(place)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_page_with_the_code_of_an_interrupt(number: signal.Signals, tmp_path: Path) -> None:
    pytest.importorskip("starlette", reason="the page needs the extra `ui`")
    begin = f"import signal; signal.signal({number.value}, signal.SIG_DFL)"  # the tests may run under nohup
    words = [sys.executable, "-c", f"{begin}; from fedstale.__main__ import main; main()"]
    words += ["ui", str(tmp_path / "runs"), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    process.send_signal(number)
    _, told = process.communicate(timeout=600)
    assert (process.returncode, told) == (130, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_every_command_takes_signals_as_interrupts_but_those_that_nohup_ignores(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []
    monkeypatch.setattr(app, "main", lambda: found.append(signal.getsignal(number)))
    before = signal.getsignal(number)
    try:
        for handler in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(number, handler)
            fedstale("list")
    finally:
        signal.signal(number, before)
    assert found == [signal.default_int_handler, signal.SIG_IGN]
