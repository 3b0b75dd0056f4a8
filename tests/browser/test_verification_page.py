"""The page of a verification in a real browser: readable without a script, in both themes, in narrow and wide windows."""

from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest

import labkit
from labkit.report.html import verification_page
from labkit.verification.links import whole_chain

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    report = labkit.verify(ids=[[5, 6, 7, 8, 9]], plant="erf-gelu:2", tokens=4)
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(verification_page(report, links=whole_chain(report)), encoding="utf-8")
    return file.as_uri()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1280])
def test_it_reads_in_both_themes_and_widths(address: str, theme: str, width: int, browser: Any) -> None:
    context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 900})
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    assert asked == [address]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")  # only tables and picture scroll
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(252, 252, 250)" if theme == "light" else "rgb(22, 24, 28)")
    script = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
    page.evaluate(script)
    found = page.evaluate("axe.run().then(r => r.violations.map(v => v.id + ': ' + v.nodes[0].html))")
    assert found == []
    context.close()


def test_it_needs_no_script(address: str, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert "h.2.mlp.post is the first stage beyond rounding" in page.inner_text("h1")
    assert page.locator("svg .stem").count() == 61
    assert page.locator("section > div tbody tr").first.is_visible()
    everything = page.locator("details tbody tr")
    assert everything.count() == 61
    assert not everything.first.is_visible()
    page.locator("details summary").click()
    assert everything.first.is_visible()
    context.close()
