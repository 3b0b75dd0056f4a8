"""The documents' Python runs as it stands, from any folder, and their links lead somewhere."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

DOCUMENTS = ["README.md", *sorted(f"docs/{path.name}" for path in (Path(__file__).parents[2] / "docs").glob("*.md"))]

NETWORK = "network"
"""Word after ``python`` at the fence of a block that needs one."""


def snippets(text: str) -> list[tuple[str, str]]:
    """The Python of a document, block by block: the words after ``python`` at its fence, and the code."""
    return re.findall(r"^```python *(.*)\n((?s:.*?))^```$", text, re.MULTILINE)


WITH_PYTHON = [name for name in DOCUMENTS if snippets((Path(__file__).parents[2] / name).read_text(encoding="utf-8"))]


@pytest.mark.parametrize("name", WITH_PYTHON)
def test_the_python_of_a_document_runs_in_order_from_any_folder(
    name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    for number, (words, block) in enumerate(snippets((root / name).read_text(encoding="utf-8"))):
        assert words in ("", NETWORK)
        code = compile(block, f"{name}, Python block {number}", "exec")
        if words != NETWORK:
            exec(code, scope)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_python_stands_between_fences_where_it_is_run(name: str, root: Path) -> None:
    text = (root / name).read_text(encoding="utf-8")
    assert re.findall(r"^    +(?:import \w+|from [\w.]+ import .*)$", text, re.MULTILINE) == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_to_files(name: str, root: Path) -> None:
    text = (root / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert target.startswith("https://") or ((root / name).parent / target).exists(), target


def test_the_readme_leads_to_every_document(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    assert [name for name in DOCUMENTS[1:] if f"({name})" not in text] == []


def test_the_page_of_a_run_notebook_shows_each_widgets_table_and_each_pictures_words(
    root: Path, tmp_path: Path
) -> None:
    text = (root / "docs" / "notebooks.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^    \.venv/bin/jupyter (nbconvert .*)$", text, re.MULTILINE)
    cells = [
        "from labkit.widgets import MergeStepper\nMergeStepper('hello')",
        "from labkit.figures.style import new_figure\nfrom labkit.widgets import picture\npicture(new_figure('No curve yet'))",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(notebook, tmp_path / "own.ipynb")
    words = shlex.split(command.replace("notebooks/05_layers.ipynb", "own.ipynb"))
    subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, check=True)
    page = (tmp_path / "pages" / "own.html").read_text(encoding="utf-8")
    assert "widget-view+json" not in page
    assert "<table" in page
    assert 'alt="No curve yet"' in page
