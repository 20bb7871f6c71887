"""The browser of these tests: the Chromium that is installed, driven by playwright."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="the browser is driven with the extra `browser`")
    if not CHROMIUM:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    with driver.sync_playwright() as p:
        found = p.chromium.launch(executable_path=CHROMIUM)
        yield found
        found.close()
