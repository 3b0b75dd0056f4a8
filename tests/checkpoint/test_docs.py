"""docs/checkpoints.md: its Python runs, and the outputs it shows are the real ones."""

import re
from pathlib import Path
from typing import Any

import torch

from labkit.cli.main import run


def test_the_python_of_the_page_runs_as_one_session(root: Path) -> None:
    page = (root / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    ids = names["ids"]
    assert (names["broken"](ids) - names["model"](ids)).abs().max() > 1e-2
    assert torch.equal(list(names["lens"].values())[-1], names["model"](ids))
    assert str(names["model"]) in page
    shown = str(names["model"].load_report).split("\n")
    assert all(line.strip() in page for line in shown[1:])


def test_the_inventory_of_the_page_is_the_real_one(root: Path, capsys: Any, monkeypatch: Any) -> None:
    page = (root / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    shown = page[page.index("$ labkit inventory") :].split("    ...")[0].splitlines()[1:]
    monkeypatch.chdir(root)
    assert run(["inventory", "labkit/data/tiny"]) == 0
    real = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line.removeprefix("    ") for line in shown] == real[: len(shown)]
