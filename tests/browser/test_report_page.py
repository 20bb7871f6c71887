"""The page of `fedstale report` in a real browser: it draws, answers to the mouse, and fits every screen."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedstale.lab import schema as configuration
from fedstale.lab.execute import execute
from fedstale.lab.plan import plan
from fedstale.lab.runs import query, store
from fedstale.view.page import page

pytest.importorskip("plotly", reason="the report needs the extra `report`")
EXPERIMENT: dict[str, Any] = {
    "name": "try",
    "rounds": 20,
    "seeds": [1, 2],
    "engine": "batched",
    "data": {"dataset": "digits", "clients": 8, "fraction": 0.3},
    "local": {"lr": 0.05, "steps": 2},
    "participation": {"kind": "two-groups", "p_min": 0.3},
    "algorithms": [
        "fedavg",
        "mifa",
        {"kind": "auto", "label": "FedStale that tunes its β itself"},
        {"kind": "fedstale", "beta": 0.0, "label": "β = 0"},
        {"kind": "fedstale", "beta": 1.0, "label": "β = 1 & <more>"},
    ],
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two settings, so that there is an overview with a map of β."""
    folder = tmp_path_factory.mktemp("browser")
    for p_min in (0.5, 0.2):
        e = configuration.check(EXPERIMENT | {"participation": {"kind": "two-groups", "p_min": p_min}})
        for _ in execute(e, plan(e, store.open_store(folder / "runs"))):
            pass
    found = query.settings(store.runs(folder / "runs"))
    (folder / "page.html").write_text(page.page(found, [], "Two settings", 6))
    return folder / "page.html"


class View:
    """The page at one width, with all that it complained about and asked for."""

    def __init__(self, browser: Any, file: Path, width: int) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900})
        self.page.set_default_timeout(120_000)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-drawn]", timeout=300_000)


@pytest.fixture(scope="module", params=[360, 1280, 1920])
def view(request: pytest.FixtureRequest, browser: Any, file: Path) -> Iterator[View]:
    found = View(browser, file, request.param)
    yield found
    found.page.close()


def figure(view: View, title: str) -> Any:
    caption = view.page.locator("figcaption", has_text=re.compile(f"^{title}$"))
    return view.page.locator("figure", has=caption).first


def test_it_draws_without_a_complaint_and_without_the_network(view: View, file: Path) -> None:
    assert view.complaints == []
    away = [u for u in view.requests if u != file.as_uri() and not u.startswith(("data:", "blob:"))]
    assert away == []


def test_no_button_sends_a_plot_away(view: View) -> None:
    titles = view.page.evaluate("[...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title)")
    allowed = {"Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"}
    assert titles
    assert set(titles) <= allowed
    assert view.page.evaluate("[...document.querySelectorAll('.plot')].every(d => !d._context.plotlyServerURL)")


def test_every_plot_is_there(view: View) -> None:
    counts = view.page.evaluate(
        "[...document.querySelectorAll('.plot')].map(d => [d.querySelectorAll('svg.main-svg').length,"
        " d.querySelectorAll('.trace, .heatmaplayer image, .points path, g.box').length])"
    )
    assert (
        len(counts) == 19
    )  # a map of β; curves, clients, visits, weights, β, raster, weight heard, staleness of both
    assert all(svgs >= 2 and drawn >= 1 for svgs, drawn in counts), counts


def test_nothing_is_wider_than_the_screen(view: View) -> None:
    wide = view.page.evaluate(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') && !e.closest('svg')"
        " && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + '.' + e.className)"
    )
    assert wide == []
    assert view.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_tables_scroll_on_a_phone_only(view: View) -> None:
    rolled = view.page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(e => !e.closest('details'))"
        ".filter(e => e.scrollWidth > e.clientWidth).map(e => e.getAttribute('aria-label'))"
    )
    assert rolled == [] or view.page.viewport_size["width"] == 360


def test_no_text_is_cut_off(view: View) -> None:
    """Headings and buttons hold their text, and what a plot writes lies inside its figure."""
    cut = view.page.evaluate(
        "[...document.querySelectorAll('h1, h2, h3, figcaption, button, p, li, summary')]"
        ".filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline')"
        ".map(e => e.textContent.slice(0, 60))"
    )
    assert cut == []
    outside = view.page.evaluate(
        """[...document.querySelectorAll('.plot')].flatMap(d => {
            const box = d.getBoundingClientRect();
            const texts = [...d.querySelectorAll('svg text')].filter(t => t.textContent && t.checkVisibility());
            return texts.filter(t => {
                const r = t.getBoundingClientRect();
                return r.width && (r.left < box.left - 1 || r.right > box.right + 1
                    || r.top < box.top - 1 || r.bottom > box.bottom + 1);
            }).map(t => d.id + ': ' + t.textContent);
        })"""
    )
    assert outside == []


def test_text_is_large_enough(view: View) -> None:
    sizes = view.page.evaluate(
        "[...document.querySelectorAll('p, td, th, button, svg.main-svg text')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= (11 if view.page.viewport_size["width"] < 1900 else 14)


def test_pointing_at_a_curve_shows_its_number(view: View) -> None:
    plot = figure(view, "Test accuracy").locator(".plot")
    plot.scroll_into_view_if_needed()
    point = plot.locator(".scatterlayer .points path").last.bounding_box()
    view.page.mouse.move(point["x"] + point["width"] / 2, point["y"] + point["height"] / 2)
    label = plot.locator(".hoverlayer .hovertext")
    label.first.wait_for()
    assert "round" in label.first.text_content()
    assert "%" in label.first.text_content()
    view.page.mouse.move(0, 0)


def until(view: View, ready: Callable[[], bool]) -> None:
    """Wait for what the page does after a click."""
    end = time.monotonic() + 120
    while not ready():
        assert time.monotonic() < end
        view.page.wait_for_timeout(50)


def shown(view: View, title: str, label: str) -> list[Any]:
    """Whether the traces of a label are visible in a figure."""
    found: list[Any] = (
        figure(view, title)
        .locator(".plot")
        .evaluate("(d, label) => d.data.filter(t => t.legendgroup === label).map(t => t.visible !== false)", label)
    )
    return found


def test_a_legend_entry_hides_and_shows_its_curve(view: View) -> None:
    title, label = "Training objective", "β = 1 & <more>"
    button = figure(view, title).get_by_role("button", name=label)
    drawn = figure(view, title).locator(".scatterlayer .trace")
    before = drawn.count()
    button.click()
    until(view, lambda: shown(view, title, label) == [False, False])  # the band and the curve
    until(view, lambda: drawn.count() == before - 2)
    assert button.get_attribute("aria-pressed") == "false"
    button.press("Enter")  # and by the keyboard
    until(view, lambda: shown(view, title, label) == [True, True])
    assert button.get_attribute("aria-pressed") == "true"


def test_the_second_half_can_be_looked_at(view: View) -> None:
    found = figure(view, "Test accuracy")
    span = "d => d._fullLayout.xaxis.range"
    whole = found.locator(".plot").evaluate(span)
    found.get_by_role("button", name="second half only").click()
    until(view, lambda: found.locator(".plot").evaluate(span)[0] == 10)
    found.get_by_role("button", name="second half only").click()
    until(view, lambda: found.locator(".plot").evaluate(span) == whole)


def test_the_numbers_unfold(view: View) -> None:
    found = figure(view, "Test accuracy")
    found.locator("summary").click()
    assert found.locator("table tbody tr").first.is_visible()
    assert view.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    found.locator("summary").click()


def test_plots_follow_the_width_of_the_window(browser: Any, file: Path) -> None:
    view = View(browser, file, 1280)
    width = "document.querySelector('.plot svg.main-svg').getBoundingClientRect().width"
    before = view.page.evaluate(width)
    view.page.set_viewport_size({"width": 400, "height": 800})
    until(view, lambda: view.page.evaluate(width) < 400 < before)
    # every plot follows by itself
    until(view, lambda: view.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))
    assert view.complaints == []
    view.page.close()


def test_without_javascript_the_numbers_are_still_there(browser: Any, file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    plain = context.new_page()
    plain.goto(file.as_uri())
    assert plain.locator("noscript p").is_visible()
    assert plain.locator("table").first.is_visible()
    context.close()
