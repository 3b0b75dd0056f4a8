"""``labkit explain``: one element of one stage, down to the bytes of the weights that it is made of."""

from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.console import progress, show, write_json
from labkit.cli.prompts import Folder, rows_of


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command()(explain)


def explain(
    element: Annotated[str, typer.Argument(help="A stage and an index on every axis, as 'h.0.attn.q[0,1,3,7]'.")],
    folder: Folder = None,
    *,
    prompt: Annotated[str | None, typer.Option(help="A text to run.")] = None,
    ids: Annotated[str | None, typer.Option(help="Token ids to run, as 1,2,3.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Take the values from this trace file of any engine.")] = None,
    top: Annotated[int, typer.Option(min=0, help="Show so many terms, the largest first.")] = 12,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write JSON, with every term, to a file; - is standard output.")
    ] = None,
) -> int:
    """Show how one element comes about: every product, with the byte offset of its weight."""
    rows = rows_of(None if prompt is None else [prompt], None if ids is None else [ids])
    with progress() as say:
        say("running the prompt")
        from labkit.report.explain import explanation_json, render_explanation
        from labkit.verification.explain import explain as made_of

        made = made_of(element, folder, prompt=prompt, ids=rows, trace=trace)
    if json is not None:
        write_json(explanation_json(made), json)
    if json != "-":
        show(render_explanation(made, top=top))
    return 0
