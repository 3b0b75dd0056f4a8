"""Saved notebooks as plain pages: every widget's twin and every picture is there without a kernel and without a network."""

import html
import re
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter

from tests.notebooks.execute import NOTEBOOKS

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))


def page(path: Path, theme: str) -> str:
    exporter = HTMLExporter(theme=theme)
    body, _resources = exporter.from_notebook_node(nbformat.read(path, as_version=4))
    return str(body)


def words(markup: str) -> str:
    """What a reader sees of some HTML."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", markup)).split())


def twins(path: Path) -> list[str]:
    outputs = [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", [])]
    return [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_a_page_holds_every_twin_and_picture(path: Path) -> None:
    body = page(path, "light")
    for twin in twins(path):
        assert words(twin) in words(body)
    pictures = [
        output
        for cell in nbformat.read(path, as_version=4).cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    for picture in pictures:
        assert picture.metadata["image/png"]["alt"]
        assert picture.data["image/png"].replace("\n", "")[:400] in body.replace("\n", "")
