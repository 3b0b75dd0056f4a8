"""A browser and a JupyterLab for all tests here; without Chromium they are skipped and say why, or, where
LABKIT_REQUIRE_BROWSER is set, fail.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.lab_page import LabPage
from tests.browser.lab_server import Lab, running_lab

NAMES = ("chromium", "chromium-browser", "google-chrome")
VIEW = {"width": 1300, "height": 1000}


@pytest.fixture(scope="session")
def chromium() -> str:
    """Where the browser is."""
    for name in NAMES:
        found = shutil.which(name)
        if found:
            return found
    if os.environ.get("LABKIT_REQUIRE_BROWSER"):
        pytest.fail("LABKIT_REQUIRE_BROWSER is set, and there is no Chromium browser here")
    pytest.skip(f"no Chromium browser here (looked for {', '.join(NAMES)})")


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[object]:
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield running
        running.close()


@pytest.fixture(scope="session")
def lab(chromium: str, root: Path) -> Iterator[Lab]:
    """A JupyterLab on a copy of the notebooks, with the pages of the tests beside them."""
    with (
        tempfile.TemporaryDirectory(prefix="labkit-browser-") as place,
        running_lab(Path(place), root / "notebooks") as running,
    ):
        yield running


@pytest.fixture(scope="module")
def lab_page(lab: Lab, browser: object) -> Iterator[LabPage]:
    """A page for the tests of one file; at the end nothing went wrong in it and nothing left the machine."""
    context = browser.new_context(viewport=VIEW, reduced_motion="reduce")  # type: ignore[attr-defined]
    page = LabPage(lab, context.new_page())
    yield page
    context.close()
    assert page.console == []
    assert page.outside == []


@pytest.fixture(scope="session")
def pictures(root: Path) -> Path:
    """Where screenshots go; CI keeps the folder."""
    folder = root / "test-output" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
