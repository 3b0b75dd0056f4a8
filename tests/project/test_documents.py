"""The documents' Python runs as it stands, from any folder, and their links lead somewhere."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

RUN = ["README.md", "docs/checkpoints.md", "docs/generation.md", "docs/tokenizer.md", "docs/traces.md"]
"""Documents whose Python needs nothing but labkit, and the files that ``corpus`` makes."""


def snippets(text: str) -> list[str]:
    """The Python of a document, block by block."""
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder that is not the project's, with the one file that a document reads."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("It is a truth universally acknowledged.\n")
    return tmp_path


@pytest.mark.parametrize("name", RUN)
@pytest.mark.usefixtures("corpus")
def test_the_python_of_a_document_runs_from_any_folder(name: str, root: Path) -> None:
    blocks = snippets((root / name).read_text(encoding="utf-8"))
    assert blocks
    scope: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{name}, Python block {number}", "exec"), scope)


DOCUMENTS = ["README.md", *sorted(f"docs/{path.name}" for path in (Path(__file__).parents[2] / "docs").glob("*.md"))]


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
