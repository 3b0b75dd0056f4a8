"""A saved notebook as a plain page in a browser without a network."""

from pathlib import Path
from typing import Any

import pytest

from tests.notebooks.execute import NOTEBOOKS
from tests.notebooks.test_page import page

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_reads_offline(tmp_path: Path, browser: Any, pictures: Path, theme: str) -> None:
    """In a browser that is offline: the twin's table is visible, and its text stands out from the page."""
    file = tmp_path / "page.html"
    file.write_text(page(NOTEBOOKS / "04_merges.ipynb", theme), encoding="utf-8")
    context = browser.new_context(offline=True, color_scheme=theme)
    opened = context.new_page()
    opened.goto(file.as_uri(), wait_until="domcontentloaded")
    cell = opened.locator("table caption", has_text="Merges of the piece").first
    assert cell.is_visible()
    colours = opened.evaluate(
        "() => [getComputedStyle(document.querySelector('table caption')).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert colours[0] != colours[1]
    cell.scroll_into_view_if_needed()
    opened.screenshot(path=pictures / f"page-{theme}.png")
    context.close()
