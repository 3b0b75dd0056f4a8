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
    looks = (
        ("python", _python()),
        ("packages", _packages()),
        ("devices", _devices()),
        ("vocabulary", _vocabulary()),
        ("checkpoints", _checkpoints(folder)),
        ("checkpoints", _cached_checkpoints()),
        ("notebooks", _notebooks(folder)),
    )
    return Diagnosis(findings=tuple(finding for group, look in looks for finding in _as_far_as_it_goes(group, look)))


def _as_far_as_it_goes(group: str, look: Iterator[Finding]) -> Iterator[Finding]:
    """What a look finds; a folder that cannot be read ends it with a note."""
    try:
        yield from look
    except OSError as error:
        yield Finding(group=group, name="folder", state="note", detail=_unreadable(error))


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
    for place in _listed(folder / "models", "*"):
        if not _is_absent(place / "config.json"):
            yield _checkpoint(f"models/{place.name}", place, needed=False)


def _cached_checkpoints() -> Iterator[Finding]:
    """Snapshots in the hub's cache whose config is GPT-2's."""
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return
    for config in _listed(Path(HF_HUB_CACHE), "models--*/snapshots/*/config.json"):
        try:
            fields = parse_json(read_regular(config))
        except (OSError, NotJson):
            continue
        if isinstance(fields, dict) and fields.get("model_type") == "gpt2":
            name = f"hub cache, {config.parent.parent.parent.name}"
            yield _checkpoint(name, config.parent, needed=False)


def _checkpoint(name: str, place: Path, *, needed: bool) -> Finding:
    try:
        next(place.iterdir(), None)  # for its error: to the inventory a folder that cannot be read is an empty one
        found = take_inventory(place)
    except (LabkitError, OSError) as error:
        state: State = "missing" if needed else "note"
        detail = str(error) if isinstance(error, LabkitError) else _unreadable(error)
        return Finding(group="checkpoints", name=name, state=state, detail=detail)
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
    found = next(filter(None, (_listed(place, "*.ipynb") for place in places)), [])
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


def _listed(folder: Path, pattern: str) -> list[Path]:
    """What fits in a folder, nothing where there is none; one that cannot be read raises, which glob passes over."""
    if _is_absent(folder):
        return []
    next(folder.iterdir(), None)
    return sorted(folder.glob(pattern))


def _is_absent(path: Path) -> bool:
    """Whether nothing is there; not so where it may be there and cannot be reached."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _unreadable(error: OSError) -> str:
    return f"cannot be read: {error.filename}: {error.strerror}"


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
