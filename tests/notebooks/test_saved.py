"""What the repository may hold as a notebook: run in order, readable without a kernel, comparable on any machine."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.notebooks.execute import NOTEBOOKS, WIDGET_VIEW

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
IGNORED_SHARE = 0.05
IGNORE_TAG = "nbval-ignore-output"
REASON = "# not compared: "
ABSOLUTE = re.compile(r"(?<![\w.:/])/(?:home|root|Users|tmp|usr|opt|var|work|mnt)/|\b[A-Z]:\\|file://")
SPEED = re.compile(r"\b\d+(?:\.\d+)?\s*(?:ms|µs|us|ns|s|sec|seconds?|minutes?|[KMGT]i?B/s|tokens?/s|tok/s|it/s)\b")


def cells(path: Path) -> list[Any]:
    return list(nbformat.read(path, as_version=4).cells)


def code(path: Path) -> list[Any]:
    return [cell for cell in cells(path) if cell.cell_type == "code"]


def texts(output: Any) -> str:
    """What nbval compares of one output."""
    data = {kind: value for kind, value in output.get("data", {}).items() if kind != "image/png"}
    return "\n".join([str(output.get("text", "")), *map(str, data.values())])


@pytest.fixture(params=PATHS, ids=lambda path: path.name)
def notebook(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_there_are_notebooks() -> None:
    assert [path.name for path in PATHS][:1] == ["00_start.ipynb"]


def test_cells_were_run_in_order(notebook: Path) -> None:
    assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))


def test_no_output_is_an_error_or_a_warning(notebook: Path) -> None:
    for cell in code(notebook):
        tagged = "raises-exception" in cell.metadata.get("tags", [])
        errors = [output for output in cell.outputs if output.output_type == "error"]
        assert bool(errors) == tagged, cell.source
        assert not [output for output in cell.outputs if output.get("name") == "stderr"], cell.source


def test_few_outputs_go_uncompared_and_each_says_why(notebook: Path) -> None:
    ignored = [cell for cell in code(notebook) if IGNORE_TAG in cell.metadata.get("tags", [])]
    assert len(ignored) <= IGNORED_SHARE * len(code(notebook))
    assert all(REASON in cell.source for cell in ignored)
    assert not [cell for cell in code(notebook) if re.search(r"(?i)#\s*nbval", cell.source)]


def test_no_widget_state_is_saved(notebook: Path) -> None:
    assert "widgets" not in nbformat.read(notebook, as_version=4).metadata
    for cell in code(notebook):
        for output in cell.outputs:
            assert WIDGET_VIEW not in output.get("data", {})


def test_no_path_of_a_machine_and_no_time(notebook: Path) -> None:
    for cell in cells(notebook):
        assert not ABSOLUTE.search(cell.source), cell.source
        for output in cell.get("outputs", []):
            assert not ABSOLUTE.search(texts(output)), cell.source
            assert not SPEED.search(texts(output)), cell.source


def test_a_picture_has_numbers_beside_it(notebook: Path) -> None:
    for cell in code(notebook):
        if any("image/png" in output.get("data", {}) for output in cell.outputs):
            printed = "".join(str(output.get("text", "")) for output in cell.outputs)
            assert re.search(r"\d", printed), cell.source


def test_a_widget_has_a_twin(notebook: Path) -> None:
    for cell in code(notebook):
        for output in cell.outputs:
            shown = output.get("data", {}).get("text/plain", "")
            assert not re.match(r"<\w+[. ]|\w+\(children=", shown), shown
            if re.match(r"[A-Z]\w+(?:Stepper|Bench|Ladder|Viewer|Sampler|Explorer)\(", shown):
                assert "<table" in output.data["text/html"], shown


def test_it_opens_with_an_aim_and_ends_with_questions(notebook: Path) -> None:
    prose = [cell.source for cell in cells(notebook) if cell.cell_type == "markdown"]
    assert re.match(r"# \d\d ", prose[0])
    assert "you can" in prose[0]
    assert any("## Questions" in text and "<details>" in text for text in prose)


def test_checkpoint_is_the_only_setting(notebook: Path) -> None:
    tagged = [cell.source for cell in code(notebook) if "parameters" in cell.metadata.get("tags", [])]
    assert tagged in ([], ["CHECKPOINT = None"])


@pytest.mark.parametrize("text", ["see /home/me/x", "at /tmp/a.txt", "C:\\Users\\me", "file:///x"])
def test_the_guard_sees_absolute_paths(text: str) -> None:
    assert ABSOLUTE.search(text)


@pytest.mark.parametrize("text", ["took 3.2 s", "12 ms", "40 tokens/s", "10 GB/s"])
def test_the_guard_sees_times(text: str) -> None:
    assert SPEED.search(text)
