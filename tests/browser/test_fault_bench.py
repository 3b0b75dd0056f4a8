"""The fault bench in a real JupyterLab."""

from pathlib import Path

import pytest

from tests.browser.lab_page import LabPage

pytestmark = pytest.mark.browser
NAME = "labkit-fault-bench"
CELLS = (
    "from labkit.widgets import FaultBench",
    "FaultBench(fault='transpose-c_proj', block=1, prompt='It is a truth')",
)


def test_choose_a_fault_and_walk_the_grid(lab_page: LabPage, pictures: Path) -> None:
    assert lab_page.open_cells("bench.ipynb", *CELLS) == []
    widget = lab_page.widget(NAME)
    cells = lab_page.cells()
    assert widget.locator(".labkit-local button").all_text_contents()[0].startswith("✗")
    assert "Stage h.1.attn.out" in widget.locator(".labkit-detail").inner_text()

    widget.locator(".labkit-local button").focus()
    lab_page.page.keyboard.press("ArrowUp")
    assert "Stage h.1.attn.z" in widget.locator(".labkit-detail").inner_text()
    lab_page.page.keyboard.press("ArrowRight")
    assert "Stage h.2.attn.z" in widget.locator(".labkit-detail").inner_text()
    lab_page.page.keyboard.press("End")
    assert "Stage logits" in widget.locator(".labkit-detail").inner_text()
    for key in ("a", "x", "b"):
        lab_page.page.keyboard.press(key)
    assert lab_page.cells() == cells

    widget.get_by_label("Fault").select_option("no-mask")
    widget.get_by_text("h.1.attn.pattern is the first stage").wait_for(timeout=60_000)
    widget.get_by_label("Prompt").fill("")
    widget.get_by_role("button", name="Verify").click()
    widget.get_by_text("has no tokens").wait_for(timeout=60_000)

    widget.screenshot(path=pictures / "fault-bench-light.png")
    assert lab_page.violations(f".{NAME}") == []
    lab_page.theme("JupyterLab Dark")
    widget.screenshot(path=pictures / "fault-bench-dark.png")
    assert lab_page.violations(f".{NAME}") == []
