"""Proof that the comparison of saved outputs bites, and that notebooks run on another checkpoint."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.notebooks.execute import NOTEBOOKS, run
from tests.oracles import random_checkpoint

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
QUICK = {"04_merges.ipynb"}
"""Runs in seconds; the others take part in `make test-slow`."""
EACH = [pytest.param(path, id=path.name, marks=[] if path.name in QUICK else [pytest.mark.slow]) for path in PATHS]


def outputs(notebook: Any, kind: str) -> list[Any]:
    every = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output for output in every if kind == output.output_type or kind in output.get("data", {})]


def change_a_printed_figure(notebook: Any) -> None:
    """One digit of the first printed output that has any."""
    output = next(each for each in outputs(notebook, "stream") if any(c.isdigit() for c in each.text))
    place = next(i for i, c in enumerate(output.text) if c.isdigit())
    output.text = output.text[:place] + str((int(output.text[place]) + 1) % 10) + output.text[place + 1 :]


def change_a_twin(notebook: Any) -> None:
    """One mark of the first widget's static twin."""
    output = outputs(notebook, "text/html")[0]
    output.data["text/html"] = output.data["text/html"].replace("<tbody><tr>", "<tbody><tr><td>0</td>", 1)


def check(path: Path, folder: Path, change: Callable[[Any], None] | None) -> "subprocess.CompletedProcess[str]":
    """nbval on a copy of a notebook whose saved outputs were changed."""
    notebook = nbformat.read(path, as_version=4)
    if change is not None:
        before = nbformat.writes(notebook)
        change(notebook)
        assert nbformat.writes(notebook) != before
    nbformat.write(notebook, folder / path.name)
    shutil.copy(NOTEBOOKS / "conftest.py", folder)
    options = [
        "--nbval",
        "--nbval-cell-timeout=120",
        "-p",
        "no:cacheprovider",
        "-q",
        "-c",
        "/dev/null",
        f"--rootdir={folder}",
    ]
    command = [sys.executable, "-m", "pytest", *options, str(folder / path.name)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("path", EACH)
def test_a_changed_figure_fails(path: Path, tmp_path: Path) -> None:
    done = check(path, tmp_path, change_a_printed_figure)
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout


def test_a_changed_twin_fails(tmp_path: Path) -> None:
    done = check(NOTEBOOKS / "04_merges.ipynb", tmp_path, change_a_twin)
    assert done.returncode == 1, done.stdout
    assert "text/html" in done.stdout


def test_an_unchanged_copy_passes(tmp_path: Path) -> None:
    done = check(NOTEBOOKS / "04_merges.ipynb", tmp_path, None)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_it_runs_on_another_checkpoint(path: Path, tmp_path: Path, embedded: Path) -> None:
    """Every cell that reads CHECKPOINT runs on a GPT-2 that transformers wrote, every parameter redrawn."""
    notebook = nbformat.read(path, as_version=4)
    if not any("parameters" in cell.metadata.get("tags", []) for cell in notebook.cells):
        pytest.skip("reads no checkpoint")
    sizes = {"vocab_size": 2048, "n_positions": 128, "n_embd": 48, "n_head": 4, "n_layer": 3}
    random_checkpoint.write(tmp_path, std=0.2, **sizes)
    for name in ("vocab.json", "merges.txt", "tokenizer.json"):
        shutil.copy(embedded / name, tmp_path)
    run(notebook, parameters={"CHECKPOINT": str(tmp_path)})
