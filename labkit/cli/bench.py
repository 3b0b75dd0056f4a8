"""``labkit bench``: a command for each thing that is measured; other rooms' benches add theirs here."""

from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.console import progress, show_record, write_json

bench = typer.Typer(help="Measure labkit beside other libraries on this machine.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(bench, name="bench")


@bench.command("load")
def bench_load(
    folder: Annotated[Path | None, typer.Argument(help="A checkpoint folder (default: a random GPT-2 small).")] = None,
    *,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; the fastest of each side counts.")] = 7,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write JSON to a file; - is standard output.")
    ] = None,
) -> int:
    """Loading and the eager forward beside transformers: exit 0 within every limit, 1 over one."""
    with progress() as say:
        from dataclasses import asdict

        from labkit.bench.load import bench_load as run

        result = run(folder, repeats=repeats, say=say)
    if json is not None:
        ratios = [asdict(each) | {"ratio": each.ratio, "within": each.within} for each in result.measures]
        write_json(asdict(result) | {"measures": ratios, "return_code": result.return_code}, json)
    if json != "-":
        show_record(result)
    return result.return_code


@bench.command("storage")
def bench_storage(
    *,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; the fastest of each side counts.")] = 7,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write JSON to a file; - is standard output.")
    ] = None,
) -> int:
    """Safetensors files beside the official library and a plain read: exit 0 within every limit, 1 over one."""
    with progress() as say:
        from dataclasses import asdict

        from labkit.bench.storage import bench_storage as run

        result = run(repeats=repeats, say=say)
    if json is not None:
        ratios = [asdict(each) | {"ratio": each.ratio, "within": each.within} for each in result.measures]
        write_json(asdict(result) | {"measures": ratios, "return_code": result.return_code}, json)
    if json != "-":
        show_record(result)
    return result.return_code


@bench.command("notebooks")
def bench_notebooks(
    folder: Annotated[Path | None, typer.Argument(help="The notebooks' folder (default: labkit's own).")] = None,
    *,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write JSON to a file; - is standard output.")
    ] = None,
) -> int:
    """The lab's own times: widgets, figures, JupyterLab, the notebooks under nbval: exit 0 within every limit, 1 over one."""
    with progress() as say:
        from dataclasses import asdict

        from labkit.bench.notebooks import bench_notebooks as run
        from labkit.cli.lab import find_notebooks

        result = run(find_notebooks(folder), say=say)
    if json is not None:
        timings = [asdict(each) | {"within": each.within} for each in result.timings]
        write_json(asdict(result) | {"timings": timings, "return_code": result.return_code}, json)
    if json != "-":
        show_record(result)
    return result.return_code
