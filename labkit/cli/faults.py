"""``labkit faults``: every known fault planted in a real model, to show that the checks can fail."""

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from labkit.cli.console import progress, show, write_json
from labkit.cli.prompts import Folder, rows_of, stand_in_rows
from labkit.errors import UnknownNameError

_NEAR_NAMES = 4
_STEM = 4  # letters from which on a word may be another's beginning: transpose, transposed


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    app.command()(faults)


def faults(
    folder: Folder = None,
    *,
    prompt: Annotated[list[str] | None, typer.Option(help="A text to run; several make a padded batch.")] = None,
    ids: Annotated[list[str] | None, typer.Option(help="Token ids instead of texts, as 1,2,3.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Plant this fault only; may be given several times.")] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="Plant nothing: name every fault, where it is planted and what it does.")
    ] = False,
    floors: Annotated[bool, typer.Option(help="Find the smallest size of each fault that is still seen.")] = True,
    json: Annotated[
        str | None, typer.Option(help="Write the matrix as JSON to this file (- for standard output).")
    ] = None,
) -> int:
    """Plant every known fault and see what notices: exit 0 where none survives and each is named, else 1."""
    if list_all:
        return _list_faults(json)
    rows = rows_of(prompt, ids)
    with progress() as say:
        from labkit.report.faults import kill_matrix_json, render_kill_matrix
        from labkit.verification.kill_matrix import kill_matrix

        check_faults(only)
        if not prompt and rows is None:
            rows = stand_in_rows(folder)
        matrix = kill_matrix(
            folder, prompts=prompt, ids=rows, faults=only, floors="measure" if floors else "skip", progress=say
        )
    if json is not None:
        write_json(kill_matrix_json(matrix), json)
    if json != "-":
        show(render_kill_matrix(matrix))
    return matrix.return_code


def _list_faults(json: str | None) -> int:
    with progress():
        from labkit.report.faults import faults_json, render_faults
        from labkit.verification.faults import FAULTS
    if json is not None:
        write_json(faults_json(FAULTS.values()), json)
    if json != "-":
        show(render_faults(FAULTS.values()))
    return 0


def check_faults(texts: Iterable[str] | None) -> None:
    """Raise ``UnknownNameError``, with near names, for a ``NAME`` or ``NAME:BLOCK`` that names no fault."""
    from labkit.verification.faults import FAULTS

    for text in texts or ():
        name = text.partition(":")[0]
        if name not in FAULTS:
            near = near_names(name, {fault.name: fault.mistake for fault in FAULTS.values()})
            meant = f"did you mean {', '.join(map(repr, near))}? " if near else ""
            raise UnknownNameError(f"no fault named {name!r}", fix=f"{meant}`labkit faults --list` names all")


def near_names(name: str, described: dict[str, str]) -> list[str]:
    """The names that share most words with ``name``, in themselves or in their description; the likest first.

    >>> near_names("gelu-erf", {"erf-gelu": "the activation is erf gelu", "relu": "the activation is relu"})
    ['erf-gelu']
    """
    asked = set(_words(name))
    shared = {
        known: sum(_alike(word, other) for part in (known, text) for other in set(_words(part)) for word in asked)
        for known, text in described.items()
    }
    most = max(shared.values(), default=0)
    best = [known for known, count in shared.items() if count == most] if most else list(described)
    return difflib.get_close_matches(name, best, n=_NEAR_NAMES, cutoff=0.0 if most else 0.6)


def _words(text: str) -> Iterator[str]:
    return (word.lower() for word in re.split(r"[^A-Za-z0-9]+", text) if word)


def _alike(a: str, b: str) -> bool:
    return a == b or (min(len(a), len(b)) >= _STEM and (a.startswith(b) or b.startswith(a)))
