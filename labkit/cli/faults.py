"""``labkit faults``: every known fault planted in a real model, to show that the checks can fail."""

from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.console import progress, show, write_json
from labkit.cli.prompts import rows_of, stand_in_rows


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    app.command()(faults)


def faults(
    folder: Annotated[Path | None, typer.Argument(help="Checkpoint folder (default: the embedded one).")] = None,
    *,
    prompt: Annotated[list[str] | None, typer.Option(help="A text to run; several make a padded batch.")] = None,
    ids: Annotated[list[str] | None, typer.Option(help="Token ids instead of texts, as 1,2,3.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Plant this fault only; may be given several times.")] = None,
    floors: Annotated[bool, typer.Option(help="Find the smallest size of each fault that is still seen.")] = True,
    json: Annotated[
        str | None, typer.Option(help="Write the matrix as JSON to this file (- for standard output).")
    ] = None,
) -> int:
    """Plant every known fault and see what notices: exit 0 where none survives and each is named, else 1."""
    rows = rows_of(prompt, ids)
    with progress() as say:
        from labkit.report.faults import kill_matrix_json, render_kill_matrix
        from labkit.verification.kill_matrix import kill_matrix

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
