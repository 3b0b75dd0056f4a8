"""The lab's own times: importing the widgets, a figure, the notebooks under nbval, JupyterLab until a cell has run.

Each is a child process, so that nothing is warm but the disk. What needs a browser is left out where playwright or
Chromium is not there.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import MissingFileError

IMPORT = "import labkit.widgets as w; w.MergeStepper"
FIGURE = """
import time
from labkit.figures.ladder import draw_ladder
from labkit.figures.style import to_png
from labkit.verification import verify
report = verify(prompts=["It is a truth"], tokens=0)
to_png(draw_ladder(report))
began = time.perf_counter()
to_png(draw_ladder(report))
print(time.perf_counter() - began)
"""
SLIDER = """async () => {
    const widget = document.querySelector('.jp-Notebook .labkit-merge-stepper');
    const slider = widget.querySelector('input[type=range]');
    const began = performance.now();
    slider.value = 1;
    slider.dispatchEvent(new Event('input'));
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    return (performance.now() - began) / 1000;
}"""
KERNEL_READY = ".jp-Notebook-ExecutionIndicator[data-status=idle]"
STEPPER = "04_merges.ipynb"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One time and the most that it may be, in seconds."""

    name: str
    seconds: float
    limit: float

    @property
    def within(self) -> bool:
        """Whether the time is at most the limit."""
        return self.seconds <= self.limit


@dataclass(frozen=True, kw_only=True)
class NotebookBench:
    """Every timing of the lab, and what could not be timed."""

    timings: tuple[Timing, ...]
    notes: tuple[str, ...]

    @property
    def return_code(self) -> int:
        """0 where every time is within its limit, else 1."""
        return 0 if all(each.within for each in self.timings) else 1

    def __str__(self) -> str:
        lines = [
            f"{each.name:44} {each.seconds:8.2f} s  (at most {each.limit:g})  {'ok' if each.within else 'over'}"
            for each in self.timings
        ]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def bench_notebooks(notebooks: Path, *, say: Callable[[str], None] | None = None) -> NotebookBench:
    """Time the lab on the notebooks in ``notebooks``.

    Raises MissingFileError where the folder holds no notebook.
    """
    tell = say or (lambda _step: None)
    if not any(notebooks.glob("*.ipynb")):
        raise MissingFileError("there is no notebook", where=notebooks)
    tell("importing the widgets")
    timings = [Timing(name="import labkit.widgets, make a stepper ready", seconds=_child(IMPORT)[0], limit=1.5)]
    tell("drawing a figure")
    timings.append(Timing(name="a ladder, drawn and written", seconds=float(_child(FIGURE)[1]), limit=1.0))
    tell("opening JupyterLab")
    found, notes = _in_browser(notebooks)
    timings += found
    tell("running every notebook under nbval")
    seconds, passed = _nbval(notebooks)
    timings.append(Timing(name="all notebooks under nbval", seconds=seconds, limit=360.0))
    notes += () if passed else ("a notebook did not pass nbval; see `make notebooks`",)
    return NotebookBench(timings=tuple(timings), notes=notes)


def _child(code: str) -> tuple[float, str]:
    """Seconds that a fresh Python takes for ``code``, its own start left out, and what it printed."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", ""], check=True)
    empty = time.perf_counter() - began
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return max(time.perf_counter() - began - empty, 0.0), done.stdout


def _nbval(notebooks: Path) -> tuple[float, bool]:
    """Seconds, and whether every saved output was met."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-cell-timeout=120", str(notebooks)]
    done = subprocess.run(command, cwd=notebooks.parent, check=False, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began, done.returncode == 0


def _in_browser(notebooks: Path) -> tuple[list[Timing], tuple[str, ...]]:
    """`labkit lab` until the first notebook's kernel is ready, and a slider of the stepper until it is drawn."""
    chromium = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        return [], ("playwright is not installed: JupyterLab was not timed",)
    if chromium is None:
        return [], ("no Chromium here: JupyterLab was not timed",)
    sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=sandbox)
        page = browser.new_page()
        page.set_default_timeout(120_000)
        began = time.perf_counter()
        command = [sys.executable, "-c", "from labkit.cli import main; main()", "lab", str(notebooks), "--no-browser"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert server.stdout is not None
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address is not None
            page.goto(address[0])
            page.locator(KERNEL_READY).first.wait_for()
            ready = time.perf_counter() - began
            page.goto(address[0].replace("00_start.ipynb", STEPPER))
            page.locator(KERNEL_READY).first.wait_for()
            page.get_by_role("menuitem", name="Run").click()
            page.get_by_text("Run All Cells", exact=True).click()
            page.locator(".jp-Notebook .labkit-merge-stepper").first.wait_for()
            slider = float(page.evaluate(SLIDER))
        finally:
            server.terminate()
            server.wait()
            browser.close()
    return [
        Timing(name="JupyterLab until the first notebook is ready", seconds=ready, limit=20.0),
        Timing(name="slider to picture, merge stepper", seconds=slider, limit=0.15),
    ], ()
