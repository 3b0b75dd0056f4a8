"""Attention viewer, sampler and stage ladder in a real JupyterLab."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.lab_page import LabPage

pytestmark = pytest.mark.browser
CELLS = (
    "import labkit\n"
    "from labkit.widgets import AttentionViewer, Sampler, StageLadder\n"
    "model = labkit.load_gpt2()\n"
    "report = labkit.verify(prompts=['It is a truth'], plant='erf-gelu:2', tokens=0)\n"
    "taps = model.run(report.prompts[0].ids, taps='all').taps",
    "AttentionViewer(model, 'It is a truth', block=1)",
    "Sampler(model, 'It is a', top_k=12)",
    "StageLadder(report, actual=taps, expected=taps)",
)
NAMES = ("labkit-attention-viewer", "labkit-sampler", "labkit-stage-ladder")


@pytest.fixture(scope="module")
def widgets(lab_page: LabPage) -> LabPage:
    assert lab_page.open_cells("model-widgets.ipynb", *CELLS) == []
    return lab_page


def test_attention_by_keyboard_and_mouse(widgets: LabPage) -> None:
    viewer = widgets.widget(NAMES[0])
    heads = viewer.get_by_role("button", name="head ")
    heads.first.focus()
    for key in ("ArrowRight", "ArrowRight", "a", "x"):
        widgets.page.keyboard.press(key)
    expect(heads.nth(2)).to_have_attribute("aria-pressed", "true")
    viewer.locator('[data-query="2"][data-key="1"]').focus()
    widgets.page.keyboard.press("ArrowDown")
    assert "(3) attends to" in viewer.locator(".labkit-said").inner_text()
    viewer.get_by_label("Block").select_option("3")
    viewer.get_by_text("Block 3, head 2").wait_for()
    viewer.get_by_label("Prompt").fill("She was")
    viewer.get_by_label("Prompt").press("Enter")
    expect(viewer.locator(".labkit-attention tbody tr")).to_have_count(2)
    assert widgets.cells() == len(CELLS)


def test_sampler_by_keyboard_and_mouse(widgets: LabPage) -> None:
    sampler = widgets.widget(NAMES[1])
    left = sampler.locator("tr", has_text="tokens left").locator("td")
    expect(left.nth(2)).to_have_text("12")
    top_k = sampler.get_by_role("slider", name="Top-k")
    top_k.focus()
    for key in ("ArrowLeft", "ArrowLeft", "b", "x"):
        widgets.page.keyboard.press(key)
    expect(left.nth(2)).to_have_text("10")
    sampler.get_by_role("slider", name="Temperature").press("Home")
    sampler.get_by_role("button", name="Draw a token").click()
    sampler.get_by_text("draw 1:").wait_for()
    assert widgets.cells() == len(CELLS)


def test_ladder_by_keyboard_and_mouse(widgets: LabPage) -> None:
    ladder = widgets.widget(NAMES[2])
    chosen = ladder.locator('[aria-selected="true"]')
    expect(chosen).to_contain_text("h.2.mlp.post")
    stages = ladder.get_by_role("listbox", name="Stages")
    stages.focus()
    for key in ("ArrowUp", "a", "x"):
        widgets.page.keyboard.press(key)
    expect(chosen).to_contain_text("h.2.mlp.pre")
    stages.press("End")
    ladder.get_by_text("Stage logits").wait_for()
    ladder.get_by_text("Error over pos").wait_for()
    stages.press("Home")
    ladder.get_by_role("option", name="embed").click()
    expect(chosen).to_contain_text("embed")
    assert widgets.cells() == len(CELLS)


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_axe_finds_nothing(widgets: LabPage, pictures: Path, theme: str) -> None:
    widgets.theme(theme)
    for name in NAMES:
        widgets.widget(name).screenshot(
            path=pictures / f"{name.removeprefix('labkit-')}-{theme.split()[-1].lower()}.png"
        )
        assert widgets.violations(f".{name}") == []
