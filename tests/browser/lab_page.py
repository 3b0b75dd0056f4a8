"""One JupyterLab page under test: open a notebook, run it, look at it, and keep what went wrong."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nbformat
from playwright.sync_api import Locator, Page

from tests.browser.lab_server import Lab

RUN_MS = 180_000
READY = """async () => {
    const panel = window.jupyterapp.shell.currentWidget;
    await panel.context.ready;
    await panel.sessionContext.ready;
    await panel.sessionContext.session.kernel.info;
}"""
RUN_ALL = "async () => { await window.jupyterapp.commands.execute('notebook:run-all-cells'); }"
CELLS = "() => window.jupyterapp.shell.currentWidget.content.model.cells.length"
ERRORS = """() => [...window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells]
    .flatMap((cell) => cell.toJSON().outputs ?? []).filter((output) => output.output_type === 'error')
    .map((output) => `${output.ename}: ${output.evalue}`)"""
AXE = """async (selector) => {
    const found = await window.axe.run(selector, { rules: { region: { enabled: false } } });
    return found.violations.map((each) => `${each.id}: ${each.help} (${each.nodes.map((node) => node.html).join(' | ')})`);
}"""
THEME = """async (name) => { await window.jupyterapp.commands.execute('apputils:change-theme', { theme: name }); }"""


class LabPage:
    """A browser page on one notebook."""

    def __init__(self, lab: Lab, page: Page) -> None:
        self.lab = lab
        self.page = page
        self.console: list[str] = []
        self.outside: list[str] = []
        page.on("console", lambda message: self.console.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.console.append(str(error)))
        page.on("request", self._seen)

    def _seen(self, request: Any) -> None:
        host = urlsplit(request.url).hostname
        if host not in (None, "127.0.0.1"):
            self.outside.append(request.url)

    def open_cells(self, name: str, *sources: str) -> list[str]:
        """Write a notebook of these cells, open it and run it; the errors among the outputs."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, self.lab.folder / name)
        self.open(name)
        return self.run_all()

    def open(self, notebook: str) -> None:
        """Open a notebook and wait for its kernel."""
        self.page.goto(f"{self.lab.address}/lab/tree/{notebook}?token={self.lab.token}&reset")
        self.page.wait_for_function(
            "() => window.jupyterapp?.shell?.currentWidget?.context !== undefined", timeout=60_000
        )
        self.page.evaluate(READY)

    def run_all(self) -> list[str]:
        """Run every cell; the errors among the outputs."""
        self.page.set_default_timeout(RUN_MS)
        self.page.evaluate(RUN_ALL)
        self.page.set_default_timeout(30_000)
        errors: list[str] = self.page.evaluate(ERRORS)
        return errors

    def cells(self) -> int:
        """How many cells the notebook has now."""
        return int(self.page.evaluate(CELLS))

    def theme(self, name: str) -> None:
        """Change JupyterLab's theme."""
        self.page.evaluate(THEME, name)
        self.page.wait_for_timeout(300)

    def violations(self, selector: str) -> list[str]:
        """What axe-core finds wrong with a part of the page."""
        import axe_playwright_python

        script = Path(axe_playwright_python.__file__).with_name("axe.min.js")
        self.page.evaluate(script.read_text(encoding="utf-8"))
        found: list[str] = self.page.evaluate(AXE, selector)
        return found

    def widget(self, name: str, number: int = 0) -> Locator:
        """A widget by its class, such as ``labkit-merge-stepper``."""
        found = self.page.locator(f".jp-Notebook .{name}").nth(number)
        found.wait_for(state="visible")
        found.scroll_into_view_if_needed()
        return found
