"""The hex viewer and the header explorer in a real JupyterLab: keyboard, mouse, hostile names, both themes, axe."""

from pathlib import Path

import pytest
import torch

from labkit.storage import save_safetensors
from tests.browser.lab_page import LabPage

pytestmark = pytest.mark.browser
EVIL = "<img src=x onerror=\"document.title='owned'\">"
NAMES = ("labkit-hex-viewer", "labkit-header-explorer")


@pytest.fixture(scope="module")
def opened(lab_page: LabPage) -> LabPage:
    path = lab_page.lab.folder / "hostile.safetensors"
    tensors = {EVIL: torch.arange(3.0), "plain": torch.ones(40).bfloat16()}
    save_safetensors(tensors, path, metadata={EVIL: EVIL})
    cells = (
        "from labkit.widgets import HeaderExplorer, HexViewer",
        f"HexViewer({str(path)!r}, rows=8, key='browser')",
        f"HeaderExplorer({str(path)!r})",
    )
    assert lab_page.open_cells("hex.ipynb", *cells) == []
    return lab_page


def chosen(page: LabPage) -> int:
    return int(page.widget(NAMES[0]).locator("td.labkit-chosen").get_attribute("data-offset") or -1)


def wait_for(page: LabPage, offset: int) -> None:
    page.widget(NAMES[0]).locator(f'td.labkit-chosen[data-offset="{offset}"]').wait_for()


def go(page: LabPage, text: str) -> None:
    box = page.widget(NAMES[0]).get_by_label("Go to")
    box.fill(text)
    box.press("Enter")


def test_by_keyboard(opened: LabPage, pictures: Path) -> None:
    cells = opened.cells()
    go(opened, "0")
    wait_for(opened, 0)
    opened.widget(NAMES[0]).locator("td.labkit-chosen").focus()
    at = 0
    for key, step in (
        ("ArrowRight", 1),
        ("ArrowDown", 16),
        ("ArrowDown", 16),
        ("ArrowLeft", -1),
        ("PageDown", 128),
        ("ArrowUp", -16),
    ):
        opened.page.keyboard.press(key)
        at += step
        wait_for(opened, at)
    for key in ("a", "b", "x", "d", "d", "m"):  # JupyterLab adds, cuts and deletes cells with these
        opened.page.keyboard.press(key)
    assert opened.cells() == cells
    opened.page.keyboard.press("Control+Home")
    wait_for(opened, 0)
    opened.widget(NAMES[0]).get_by_text("the header length").wait_for()
    opened.widget(NAMES[0]).screenshot(path=pictures / "hex-viewer-light.png")


def test_by_mouse_and_by_name(opened: LabPage) -> None:
    widget = opened.widget(NAMES[0])
    go(opened, "plain")
    widget.get_by_text("element [0] of BF16 [40] of tensor 'plain' = 1.0").wait_for()
    at = chosen(opened)
    widget.locator(f'td.labkit-text[data-offset="{at + 2}"]').click()
    widget.get_by_text("element [1] of BF16").wait_for()
    widget.get_by_text("exponent 01111111", exact=True).wait_for()
    go(opened, "nothing")
    widget.get_by_text("no tensor named 'nothing'").wait_for()
    go(opened, "0x10")
    wait_for(opened, 16)


def test_a_hostile_name_is_text(opened: LabPage) -> None:
    widget = opened.widget(NAMES[0])
    widget.get_by_text("Tensors", exact=True).click()
    widget.get_by_role("button").filter(has_text=EVIL).click()
    widget.get_by_text(f"element [0] of F32 [3] of tensor {EVIL!r}").wait_for()
    explorer = opened.widget(NAMES[1])
    explorer.get_by_role("button", name=EVIL).click()
    explorer.locator("caption").filter(has_text=EVIL).wait_for()
    for name in NAMES:
        assert opened.widget(name).locator("img").count() == 0
    assert opened.page.locator(".jp-OutputArea img").count() == 0
    assert opened.page.title() != "owned"


def test_the_explorer(opened: LabPage, pictures: Path) -> None:
    explorer = opened.widget(NAMES[1])
    explorer.get_by_label("Name holds").fill("pla")
    explorer.get_by_text("1 tensors, page 1 of 1").wait_for()
    explorer.get_by_role("button", name="plain").click()
    explorer.get_by_text("BF16: 16 bits, the upper half of an F32").wait_for()
    explorer.screenshot(path=pictures / "header-explorer-light.png")
    explorer.get_by_label("Name holds").fill("")
    explorer.get_by_text("2 tensors").wait_for()


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
@pytest.mark.parametrize("name", NAMES)
def test_axe_finds_nothing(opened: LabPage, theme: str, name: str, pictures: Path) -> None:
    opened.theme(theme)
    assert opened.violations(f".{name}") == []
    opened.widget(name).screenshot(path=pictures / f"{name}-{theme.split()[-1].lower()}.png")
    opened.theme("JupyterLab Light")
