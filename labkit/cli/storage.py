"""The commands on safetensors files and snapshots."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labkit.cli.console import write_json

if TYPE_CHECKING:
    from labkit.storage.header import Header

Where = Annotated[str, typer.Argument(metavar="PATH|URL", help="A safetensors file, or a snapshot folder.")]
Json = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write JSON to a file; - is standard output.")]


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    app.command()(info)


def info(path: Where, *, json: Json = None) -> None:
    """What a file or snapshot holds: sizes, metadata, dtypes; no tensor is read."""
    from labkit.report.storage import header_json, render_info

    headers, notes = read_headers(path)
    if json is not None:
        write_json(header_json(headers) | {"notes": list(notes)}, json)
    if json != "-":
        from rich.console import Console

        Console().print(render_info(headers, notes))


def read_headers(path: str) -> "tuple[list[Header], tuple[str, ...]]":
    """The headers of a file, or of every shard of a snapshot folder, without torch."""
    from labkit.storage.header import read_header
    from labkit.storage.places import is_address
    from labkit.storage.shards import read_snapshot_headers

    is_file = path.endswith(".safetensors") if is_address(path) else not Path(path).is_dir()
    return ([read_header(path)], ()) if is_file else read_snapshot_headers(path)
