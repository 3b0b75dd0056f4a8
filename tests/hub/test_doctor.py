"""The doctor: what is there, what is not, and what notebooks need."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.cli.main import run
from labkit.hub import doctor
from labkit.hub.doctor import examine, imports_of
from tests.oracles import random_checkpoint


def write_notebook(path: Path, *cells: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": [cell]} for cell in cells]}))


def test_what_is_here_is_found(tmp_path: Path) -> None:
    random_checkpoint.write(tmp_path / "models" / "small")
    (tmp_path / "models" / "broken").mkdir()
    (tmp_path / "models" / "broken" / "config.json").write_text("{")
    write_notebook(tmp_path / "notebooks" / "a.ipynb", "%pip\nimport json, torch.nn as nn", "from labkit import verify")
    write_notebook(tmp_path / "notebooks" / "b.ipynb", "import nowhere_at_all", "folder = 'models/gpt2'")
    found = {(each.group, each.name): each for each in examine(tmp_path).findings}
    assert found["python", "Python"].state == "ok"
    assert found["packages", "torch"].state == "ok"
    assert "24,816 parameters (as the formula says)" in found["checkpoints", "models/small"].detail
    assert found["checkpoints", "models/broken"].state == "note"
    assert found["vocabulary", "GPT-2"].state == "ok"
    assert found["notebooks", "a.ipynb"].state == "ok"
    assert found["notebooks", "b.ipynb"].detail == "needs package nowhere_at_all, models/gpt2 (labkit fetch)"


def test_every_notebook_of_labkit_has_a_line_wherever_the_doctor_is_asked(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    for notebook in (root / "notebooks").glob("*.ipynb"):
        assert any(notebook.name in line and "everything is here" in line for line in lines), notebook.name
    monkeypatch.setattr(doctor, "PROJECT", tmp_path)
    run(["doctor"])
    assert "labkit is installed without its own: clone the project" in capsys.readouterr().out


def test_what_is_missing_sets_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        doctor.importlib.metadata, "requires", lambda _name: ["absent-package>=9", 'optional-one>=1; extra == "lab"']
    )
    assert run(["doctor", "--json", "-"]) == 1
    told = {each["name"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    assert told["absent-package"]["state"] == "missing"
    assert told["optional-one"]["state"] == "note"
    assert run(["doctor"]) == 1
    assert "missing: absent-package" in capsys.readouterr().out


def test_source_that_is_not_python_has_no_imports() -> None:
    assert imports_of("import (") == set()
    assert imports_of("!ls\nimport a.b\nfrom .c import d\nfrom e.f import g") == {"a", "e"}


def test_what_cannot_be_read_is_noted_and_the_rest_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may read everything, so the system's refusal is played."""
    random_checkpoint.write(tmp_path / "models" / "open")
    closed = (tmp_path / "models" / "shut", tmp_path / "cache")
    for each in closed:
        each.mkdir()
    stat, iterdir = Path.stat, Path.iterdir

    def refuse(path: Path) -> None:
        if any(path.is_relative_to(each) and path != each for each in closed):
            raise PermissionError(13, "Permission denied", str(path))

    def stat_or_refuse(path: Path, **options: bool) -> os.stat_result:
        refuse(path)
        return stat(path, **options)

    def iterdir_or_refuse(path: Path) -> Iterator[Path]:
        refuse(path / "entry")
        return iterdir(path)

    monkeypatch.setattr(Path, "stat", stat_or_refuse)
    monkeypatch.setattr(Path, "iterdir", iterdir_or_refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    diagnosis = examine(tmp_path)
    found = {(each.group, each.name): each for each in diagnosis.findings}
    assert found["checkpoints", "models/open"].state == "ok"
    assert found["checkpoints", "models/shut"].state == "note"
    assert "Permission denied" in found["checkpoints", "models/shut"].detail
    assert found["checkpoints", "folder"].detail == f"cannot be read: {tmp_path / 'cache' / 'entry'}: Permission denied"
    assert ("notebooks", "00_start.ipynb") in found
