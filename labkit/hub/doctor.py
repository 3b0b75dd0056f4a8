"""This machine -> what labkit has to work with: Python, packages, devices, vocabulary, checkpoints, notebooks."""

import ast
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from labkit.checkpoint.inventory import take_inventory
from labkit.errors import LabkitError
from labkit.hub.fetch import WEIGHTS
from labkit.hub.released import RELEASED_NBYTES, RELEASED_SHA256, sha256_of
from labkit.outside import NotJson, parse_json, read_regular
from labkit.tokenizer.files import find_gpt2
from labkit.words import counted

State = Literal["ok", "note", "missing"]
PYTHONS = ((3, 11), (3, 13))
"""First and last minor versions of Python that labkit is tested on."""
PROJECT = Path(__file__).resolve().parents[2]
"""The clone that labkit runs from, where it does."""
_FETCHED = re.compile(r"models/([\w.-]+)")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at."""

    group: str
    name: str
    state: State
    detail: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything that was looked at."""

    findings: tuple[Finding, ...]

    @property
    def return_code(self) -> int:
        """0 where nothing that labkit needs is missing, else 1."""
        return int(any(each.state == "missing" for each in self.findings))


def examine(folder: Path) -> Diagnosis:
    """Look at this machine, at ``models/`` in ``folder``, and at its ``notebooks/`` or, without one, labkit's own."""
    looks = (_python(), _packages(), _devices(), _vocabulary(), _checkpoints(folder), _notebooks(folder))
    return Diagnosis(findings=tuple(finding for look in looks for finding in look))


def _python() -> Iterator[Finding]:
    version, (first, last) = sys.version_info[:2], PYTHONS
    fits = first <= version <= last
    detail = sys.version.split()[0] + (
        "" if fits else f"; labkit is tested on {first[0]}.{first[1]} to {last[0]}.{last[1]}"
    )
    state: State = "ok" if fits else "missing" if version < first else "note"
    yield Finding(group="python", name="Python", state=state, detail=detail)


def _packages() -> Iterator[Finding]:
    try:
        required = importlib.metadata.requires("labkit") or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding(group="packages", name="labkit", state="missing", detail="not installed: pip install -e .")
        return
    for requirement in sorted(required):
        name = re.split(r"[ ;<>=!~\[]", requirement, maxsplit=1)[0]
        optional = "extra ==" in requirement
        state: State = "ok"
        try:
            detail = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            detail = f"not installed; labkit {'can use' if optional else 'needs'} {requirement.split(';')[0].strip()}"
            state = "note" if optional else "missing"
        yield Finding(group="packages", name=name, state=state, detail=detail)


def _devices() -> Iterator[Finding]:
    import torch

    yield Finding(
        group="devices",
        name="cpu",
        state="ok",
        detail=f"{counted(os.cpu_count() or 1, 'core')}, torch uses {torch.get_num_threads()}",
    )
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            name = torch.cuda.get_device_name(number)
            yield Finding(group="devices", name=f"cuda:{number}", state="ok", detail=name)
    elif torch.backends.mps.is_available():
        yield Finding(group="devices", name="mps", state="ok", detail="Apple GPU")
    else:
        yield Finding(group="devices", name="GPU", state="note", detail="none; labkit does not need one")


def _vocabulary() -> Iterator[Finding]:
    try:
        vocab, _ = find_gpt2()
    except LabkitError as error:
        yield Finding(group="vocabulary", name="GPT-2", state="missing", detail=str(error))
        return
    yield Finding(group="vocabulary", name="GPT-2", state="ok", detail=f"{vocab.parent}, both hashes as released")


def _checkpoints(folder: Path) -> Iterator[Finding]:
    yield _checkpoint("embedded", Path(__file__).parent.parent / "data" / "tiny", needed=True)
    for place in sorted((folder / "models").glob("*")):
        if (place / "config.json").exists():
            yield _checkpoint(f"models/{place.name}", place, needed=False)
    for place in _cached_folders():
        yield _checkpoint(f"hub cache, {place.parent.parent.name}", place, needed=False)


def _cached_folders() -> Iterator[Path]:
    """Snapshots in the hub's cache whose config is GPT-2's."""
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return
    for config in sorted(Path(HF_HUB_CACHE).glob("models--*/snapshots/*/config.json")):
        try:
            fields = parse_json(read_regular(config))
        except (OSError, NotJson):
            continue
        if isinstance(fields, dict) and fields.get("model_type") == "gpt2":
            yield config.parent


def _checkpoint(name: str, place: Path, *, needed: bool) -> Finding:
    try:
        found = take_inventory(place)
    except LabkitError as error:
        state: State = "missing" if needed else "note"
        return Finding(group="checkpoints", name=name, state=state, detail=str(error))
    if found.problem is not None:
        return Finding(group="checkpoints", name=name, state="note", detail=found.problem)
    detail = str(found)
    weights = place / WEIGHTS
    if weights.is_file() and weights.stat().st_size == RELEASED_NBYTES:
        released = sha256_of(weights) == RELEASED_SHA256[WEIGHTS]
        detail += "; the released file, hash checked" if released else "; the released file's size, but not its hash"
    return Finding(group="checkpoints", name=name, state="ok", detail=detail)


def _notebooks(folder: Path) -> Iterator[Finding]:
    places = (folder / "notebooks", PROJECT / "notebooks")
    found = next(filter(None, (sorted(place.glob("*.ipynb")) for place in places)), [])
    if not found:
        detail = f"none in {places[0]}, and labkit is installed without its own: clone the project"
        yield Finding(group="notebooks", name="notebooks", state="note", detail=detail)
    for path in found:
        try:
            cells: Any = parse_json(read_regular(path))["cells"]
            source = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        except (OSError, ValueError, KeyError, TypeError) as error:
            yield Finding(group="notebooks", name=path.name, state="note", detail=f"cannot be read: {error}")
            continue
        lacks = [f"package {name}" for name in sorted(imports_of(source)) if importlib.util.find_spec(name) is None]
        lacks += [
            f"models/{name} (labkit fetch)"
            for name in sorted(set(_FETCHED.findall(source)))
            if not (folder / "models" / name).is_dir()
        ]
        detail = f"needs {', '.join(lacks)}" if lacks else "everything is here"
        yield Finding(group="notebooks", name=path.name, state="note" if lacks else "ok", detail=detail)


def imports_of(source: str) -> set[str]:
    """Top-level names of the packages that Python source imports; lines that only IPython reads are passed over.

    >>> sorted(imports_of("%matplotlib inline\\nimport numpy.linalg as la\\nfrom labkit import verify"))
    ['labkit', 'numpy']
    """
    lines = [line for line in source.split("\n") if not line.lstrip().startswith(("%", "!", "?"))]
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError:
        return set()
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names
