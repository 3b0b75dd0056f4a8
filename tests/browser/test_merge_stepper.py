"""The merge stepper in a real JupyterLab: by keyboard, by mouse, in both themes, with axe."""

from pathlib import Path

import pytest

from labkit.tokenizer import Tokenizer, to_symbols
from tests.browser.lab_page import LabPage

pytestmark = pytest.mark.browser
NAME = "labkit-merge-stepper"
CELLS = (
    "from labkit.widgets import MergeStepper",
    "MergeStepper('The tokenizer', piece=1, key='browser')",
)


@pytest.fixture(scope="module")
def opened(lab_page: LabPage) -> LabPage:
    assert lab_page.open_cells("stepper.ipynb", *CELLS) == []
    return lab_page


@pytest.fixture
def stepper(opened: LabPage) -> LabPage:
    """The widget at step 0 of the word " tokenizer", in the light theme."""
    opened.theme("JupyterLab Light")
    widget = opened.widget(NAME)
    widget.get_by_label("Text", exact=True).fill(" tokenizer")
    widget.get_by_label("Text", exact=True).press("Enter")
    widget.get_by_text("step 0 of 8").wait_for()
    return opened


def symbols(page: LabPage) -> list[str]:
    return page.widget(NAME).locator(".labkit-symbol b").all_text_contents()


def test_by_keyboard(stepper: LabPage, pictures: Path) -> None:
    states = [step.after for step in Tokenizer.gpt2().merge_steps(" tokenizer")]
    cells = stepper.cells()
    slider = stepper.widget(NAME).get_by_role("slider", name="Step")
    slider.focus()
    for state in states[:3]:
        stepper.page.keyboard.press("ArrowRight")
        assert symbols(stepper) == [to_symbols(each) for each in state]
    stepper.page.keyboard.press("End")
    assert symbols(stepper) == [to_symbols(each) for each in states[-1]]
    stepper.page.keyboard.press("Home")
    assert len(symbols(stepper)) == len(" tokenizer")
    for key in ("a", "b", "x", "d", "d", "m"):  # JupyterLab adds, cuts and deletes cells with these
        stepper.page.keyboard.press(key)
    assert stepper.cells() == cells
    slider.press("ArrowRight")
    stepper.widget(NAME).screenshot(path=pictures / "merge-stepper-light.png")
    stepper.theme("JupyterLab Dark")
    stepper.widget(NAME).screenshot(path=pictures / "merge-stepper-dark.png")


def test_keys_do_not_leak_from_any_control(stepper: LabPage) -> None:
    cells = stepper.cells()
    controls = stepper.widget(NAME).locator("button:visible, input:visible")
    assert controls.count() > 8
    for index in range(controls.count()):
        controls.nth(index).focus()
        for key in ("a", "x"):
            stepper.page.keyboard.press(key)
        assert stepper.cells() == cells


def test_by_mouse_and_typing(stepper: LabPage) -> None:
    widget = stepper.widget(NAME)
    widget.get_by_label("Text", exact=True).fill("日本")
    widget.get_by_label("Text", exact=True).press("Enter")
    widget.get_by_text("step 0 of 2").wait_for()
    widget.get_by_role("button", name="Next").click()
    widget.get_by_role("button", name="Last").click()
    ids = widget.locator(".labkit-symbol span:last-child").all_text_contents()
    assert ids == ["id 33768", "id 98", "id 17312", "id 105"]
    widget.get_by_role("button", name="Compare with another text").click()
    widget.locator(".labkit-panel").nth(1).wait_for()
    widget.get_by_role("button", name="Remove this text").click()
    widget.locator(".labkit-panel").nth(1).wait_for(state="detached")


def test_an_error_shows_and_state_survives_a_second_run(stepper: LabPage) -> None:
    widget = stepper.widget(NAME)
    box = widget.get_by_label("Text", exact=True)
    box.fill("y" * 200)
    box.press("Enter")
    widget.get_by_text("too long to step through").wait_for()
    box.fill(" world")
    box.press("Enter")
    widget.get_by_text("step 0 of 5").wait_for()
    stepper.page.evaluate("async () => { await window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    assert stepper.widget(NAME).get_by_label("Text", exact=True).input_value() == " world"


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_axe_finds_nothing(stepper: LabPage, theme: str) -> None:
    stepper.theme(theme)
    assert stepper.violations(f".{NAME}") == []


def test_the_page_draws_a_step_without_asking_the_kernel(stepper: LabPage) -> None:
    """In one task of the page, in which no answer of a kernel can arrive."""
    count = stepper.page.evaluate(
        """() => {
            const widget = document.querySelector('.jp-Notebook .labkit-merge-stepper');
            const slider = widget.querySelector('input[type=range]');
            slider.value = 1;
            slider.dispatchEvent(new Event('input'));
            return widget.querySelectorAll('.labkit-symbol').length;
        }"""
    )
    assert count == len(" tokenizer") - 1
