"""The page of `fedstale ui` in a real browser: it shows runs while they are computed, and fits every screen."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedstale.lab.runs.store import open_store
from tests.view.live.stores import computed

pytest.importorskip("plotly", reason="the page needs the extra `ui`")
pytest.importorskip("starlette", reason="the page needs the extra `ui`")
RUN = """
rounds = 100000
seeds = [1, 2]
engine = "batched"
algorithms = ["fedavg", "auto"]
data = { dataset = "digits", clients = 6, fraction = 0.2 }
local = { lr = 0.05, steps = 1 }
participation = { kind = "two-groups", p_min = 0.3 }
"""


class Server:
    """`fedstale ui` over a folder, in a process of its own."""

    def __init__(self, folder: Path, port: int = 0, *options: str) -> None:
        command = [sys.executable, "-m", "fedstale", "ui", str(folder), "--port", str(port), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        said = self.process.stdout.readline()
        self.address = said.split()[0]
        self.url = self.address.partition("/#")[0]
        self.port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        with self.process:  # which closes its pipe
            self.process.kill()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two experiments, one of them with a script as a label."""
    folder = tmp_path_factory.mktemp("live") / "runs"
    computed(folder)
    computed(folder, rounds=8, algorithms=["fedavg", {"kind": "fedstale", "beta": 0.5}])
    return folder


@pytest.fixture(scope="module")
def url(made: Path) -> Iterator[str]:
    """The address of a page over both."""
    server = Server(made)
    yield server.url
    server.kill()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(folder: Path, port: int = 0, *options: str) -> Server:
        started.append(Server(folder, port, *options))
        return started[-1]

    yield start
    for server in started:
        server.kill()


class View:
    """A tab of the browser, with all that it complained about and asked for elsewhere."""

    def __init__(self, browser: Any, url: str, width: int = 1280, scheme: str = "light", address: str = "") -> None:
        self.page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
        self.page.set_default_timeout(120_000)
        self.complaints: list[str] = []
        self.away: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("dialog", lambda d: self.complaints.append(f"dialog: {d.message}"))
        self.page.on(
            "request", lambda r: None if r.url.startswith((url, "data:", "blob:")) else self.away.append(r.url)
        )
        self.page.goto(address or url)
        self.page.wait_for_selector("tbody tr, p.note:has-text('No runs yet')")

    def open(self, title: str) -> None:
        self.page.get_by_role("link", name=re.compile(title)).first.click()
        self.page.wait_for_selector("html[data-drawn]")

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).first.inner_text())


def rounds_of(view: View) -> int:
    """The highest round in the table of runs."""
    return max(int(t) for t in re.findall(r"(\d+) of 100000", view.text("details")))


def later(ready: Callable[[], bool], what: str, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def test_a_run_appears_grows_and_survives_a_new_server(browser: Any, serve: Any, tmp_path: Path) -> None:
    store = tmp_path / "runs"
    server = serve(open_store(store))
    view = View(browser, server.url)
    assert "No runs yet" in view.text("main")
    (tmp_path / "try.toml").write_text(RUN)
    command = [sys.executable, "-m", "fedstale", "run", "try.toml"]
    run = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, env=dict(os.environ))
    try:
        view.page.wait_for_selector("tbody .state.running", timeout=600_000)
        view.page.evaluate("window.same = true")
        view.open("digits")
        first = rounds_of(view)
        later(lambda: rounds_of(view) > first, "the page does not grow")
        assert view.page.evaluate("document.querySelectorAll('.plot .main-svg').length > 4")
        assert view.complaints == []

        server.kill()
        later(lambda: "not connected" in view.text("#live"), "the page does not notice that the server is gone")
        serve(store, server.port)
        later(lambda: view.text("#live") == "live", "the page does not come back")
        second = rounds_of(view)
        later(lambda: rounds_of(view) > second, "the page does not go on")
        assert view.page.evaluate("window.same")  # it was never loaded again
        assert all("ERR_" in text for text in view.complaints), view.complaints  # only that nobody answered
    finally:
        run.kill()
        run.wait()
    later(lambda: "interrupted" in view.text("details"), "a killed run is not told")
    assert view.away == []


def test_a_run_is_stopped_and_resumed_from_the_page(browser: Any, serve: Any, tmp_path: Path) -> None:
    store = open_store(tmp_path / "runs")  # before the run, which would make it at the same time
    (tmp_path / "try.toml").write_text(RUN)
    command = [sys.executable, "-m", "fedstale", "run", "try.toml"]
    run = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    server = serve(store, 0, "--control")
    strange, view = View(browser, server.url), View(browser, server.url, address=server.address)
    view.page.wait_for_selector("tbody .state.running", timeout=600_000)
    assert "token" not in view.page.url
    view.open("digits")
    strange.open("digits")
    view.page.get_by_role("button", name="stop").press("Enter")
    said = run.communicate(timeout=600)[1]
    assert run.returncode == 130
    assert said.rstrip().endswith("interrupted; the same command with --resume goes on from here")
    reached = rounds_of(view)
    view.page.get_by_role("button", name="resume").click()
    later(lambda: rounds_of(view) > reached, "the resumed run does not go on", 120)
    view.page.get_by_role("button", name="stop").click()
    later(lambda: "running" not in view.text("details"), "the resumed run does not stop")
    assert strange.page.locator("[data-action]:visible").count() == 0
    assert (view.complaints, strange.complaints, view.away) == ([], [], [])


@pytest.mark.parametrize("width", [360, 1280, 1920])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_screen(browser: Any, url: str, width: int, scheme: str) -> None:
    view = View(browser, url, width, scheme)
    paper = view.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    fits = "document.documentElement.scrollWidth <= innerWidth"
    assert view.page.evaluate(fits)
    view.open("12 rounds")
    assert view.page.evaluate(fits)
    for plot in view.page.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        plot.locator("svg").first.wait_for()  # a plot is drawn when it is looked at
    wide = view.page.evaluate(
        "[...document.querySelectorAll('.plot')].filter(d => d.querySelector('svg').getBoundingClientRect().right"
        " > d.closest('figure').getBoundingClientRect().right + 1).map(d => d.getAttribute('aria-label'))"
    )
    assert wide == []
    assert view.page.evaluate(
        "[...document.querySelectorAll('.plot')].every(d => d.getAttribute('aria-label').length > 20)"
    )
    assert (view.complaints, view.away) == ([], [])


def test_a_label_with_a_script_is_shown_and_not_run(browser: Any, url: str) -> None:
    view = View(browser, url)
    view.open("12 rounds")
    assert "<script>alert(1)</script>" in view.text("main table")
    view.page.goto(view.page.url.partition("#")[0] + "#/runs?q=script")
    view.page.wait_for_selector("tbody tr")
    assert view.page.locator("tbody tr").count() == 2
    assert view.complaints == []


def _says(plot: Any, title: str) -> bool:
    return bool(plot.evaluate("d => d.layout.xaxis.title.text") == title)


def test_scale_axis_smoothing_comparison_and_export(browser: Any, url: str) -> None:
    view = View(browser, url)
    view.open("12 rounds")
    plot = view.page.locator("figure", has_text="Training objective").locator(".plot").first
    for x, said in (("seconds", "seconds of computing"), ("bytes", "bytes sent both ways")):
        view.page.select_option("[name=x]", x)
        later(partial(_says, plot, said), f"no curves over {x}")
    view.page.select_option("[name=scale]", "log")
    later(lambda: plot.evaluate("d => d.layout.yaxis.type") == "log", "no logarithmic scale")
    view.page.select_option("[name=smooth]", "0.9")
    view.page.get_by_text("Compare two algorithms").click()
    view.page.wait_for_selector("details[open] table:has-text('verdict')")
    figure = view.page.locator("figure", has_text="Training objective").first
    for button, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG"), ("CSV", b"series,")):
        with view.page.expect_download() as download:
            figure.get_by_text(button, exact=True).click()
        assert Path(download.value.path()).read_bytes().startswith(start)
    assert view.complaints == []


def test_the_lists_answer_to_the_keyboard(browser: Any, url: str) -> None:
    view = View(browser, url + "/#/runs")
    view.page.get_by_role("searchbox").fill("auto")
    later(lambda: view.page.locator("tbody tr").count() == 2, "the search finds other runs")
    view.page.get_by_role("button", name="seed").press("Enter")
    later(lambda: view.page.locator("th[aria-sort=ascending]").count() == 1, "it is not sorted")
    assert view.page.evaluate("document.activeElement.dataset.sort") == "seed"
    view.page.get_by_role("button", name="finished").press("Enter")
    later(lambda: "state=finished" in view.page.url, "the state is not in the address")
    assert view.complaints == []


def test_what_is_deleted_while_it_is_shown_is_a_sentence(
    browser: Any, serve: Any, made: Path, tmp_path: Path
) -> None:
    store = tmp_path / "runs"
    shutil.copytree(made, store)
    view = View(browser, serve(store).url)
    view.open("12 rounds")
    shutil.rmtree(store)
    view.page.get_by_text("not in the store any more").wait_for()
    assert all("404" in text for text in view.complaints), view.complaints
