"""Each notebook in a real JupyterLab: opens, runs from top to bottom, and stays on this machine."""

from pathlib import Path

import pytest

from tests.browser.lab_page import LabPage

pytestmark = pytest.mark.browser
NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))
QUICK = {"04_merges.ipynb"}
"""The others take part in `make test-slow`."""
EACH = [pytest.param(p.name, id=p.name, marks=[] if p.name in QUICK else [pytest.mark.slow]) for p in NOTEBOOKS]


@pytest.mark.parametrize("name", EACH)
def test_it_runs(lab_page: LabPage, pictures: Path, name: str) -> None:
    lab_page.open(name)
    assert lab_page.run_all() == []
    assert lab_page.page.locator(".jp-Notebook .labkit-error:visible").all_text_contents() == []
    lab_page.page.screenshot(path=pictures / f"{Path(name).stem}.png")
    assert lab_page.console == []
    assert lab_page.outside == []
