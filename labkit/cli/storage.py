"""The commands on safetensors files and snapshots."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from labkit.cli.console import output, progress, show, write_json
from labkit.errors import ArgumentError, UnknownNameError
from labkit.outside import safe, shown, whole_number
from labkit.words import counted

if TYPE_CHECKING:
    from labkit.storage.header import Entry, Header

EMBEDDED = str(Path(__file__).parent.parent / "data" / "tiny")
"""The folder that ``labkit.load.embedded`` gives, without torch."""

Where = Annotated[str, typer.Argument(metavar="PATH|URL", help="A safetensors file, or a snapshot folder.")]
WhereElseEmbedded = Annotated[
    str,
    typer.Argument(
        metavar="PATH|URL",
        help="A safetensors file, or a snapshot folder (default: the embedded checkpoint).",
        show_default=False,
    ),
]
Json = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write JSON to a file; - is standard output.")]
_SHOWN_NBYTES = 256
_MOST_NBYTES = 65_536  # two to three seconds, and half a megabyte of text


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    for command in (info, tensors, stats, export, check, diff, selftest):
        app.command()(command)
    app.command("bytes")(show_bytes)


def info(path: WhereElseEmbedded = EMBEDDED, *, json: Json = None) -> None:
    """What a file or snapshot holds: sizes, metadata, dtypes; no tensor is read."""
    from labkit.report.storage import header_json, render_info

    headers, notes = read_headers(path)
    if json is not None:
        write_json(header_json(headers) | {"notes": list(notes)}, json)
    if json != "-":
        show(render_info(headers, notes))


def tensors(
    path: WhereElseEmbedded = EMBEDDED,
    *,
    sort: Annotated[Literal["offset", "name", "size"], typer.Option(help="The order of the rows.")] = "offset",
    match: Annotated[str | None, typer.Option(metavar="GLOB", help="Only names that fit, such as 'h.0.*'.")] = None,
    json: Json = None,
) -> None:
    """Every tensor: dtype, shape, size, and its bytes in the file."""
    from fnmatch import fnmatchcase

    from labkit.report.storage import render_tensors, tensors_json

    headers, _ = read_headers(path)
    rows = [
        (header, header.entries[name])
        for header in headers
        for name in header.names()
        if match is None or fnmatchcase(name, match)
    ]
    if match is not None and not rows:
        names = [name for header in headers for name in header.entries]
        raise UnknownNameError.near("tensor", match, names, where=path)
    if sort == "name":
        rows.sort(key=lambda row: row[1].name)
    elif sort == "size":
        rows.sort(key=_largest_first)
    if json is not None:
        write_json(tensors_json(rows), json)
    if json != "-":
        show(render_tensors(rows))


def stats(
    path: WhereElseEmbedded = EMBEDDED,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]…", help="Tensors; all unless given.")] = None,
    *,
    json: Json = None,
) -> None:
    """Statistics of the values: minimum, maximum, mean, standard deviation, zeros, NaN, infinities."""
    with progress() as say:
        say("loading")
        from labkit.report.storage_findings import render_statistics, statistics_json
        from labkit.storage import open_snapshot
        from labkit.storage.statistics import measure_tensor

        with open_snapshot(path, mode="copy") as snapshot:
            chosen = names or list(snapshot)
            for name in chosen:
                snapshot.file_of(name)  # unknown names are told before the long work
            found = []
            for number, name in enumerate(chosen, 1):
                say(f"{number} of {len(chosen)}: {name}")
                found.append(measure_tensor(snapshot.file_of(name), name))
    if json is not None:
        write_json(statistics_json(found), json)
    if json != "-":
        show(render_statistics(found))


def export(
    path: Where,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The tensor.")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write.")],
    rows: Annotated[str | None, typer.Option(metavar="A:B", help="Only rows A to B (not included) of axis 0.")] = None,
    form: Annotated[
        Literal["f32", "npy", "csv"], typer.Option("--format", help="Raw little-endian float32, NumPy's .npy, or CSV.")
    ] = "npy",
) -> None:
    """Write one tensor, or some of its rows, for another tool."""
    from labkit.storage import open_snapshot
    from labkit.storage.exporting import export_tensor

    with open_snapshot(path, mode="copy") as snapshot:
        file = snapshot.file_of(name)
        chosen = None if rows is None else parse_rows(rows)
        count = export_tensor(file, name, output, rows=chosen, form=form)
    typer.echo(f"{counted(count, 'element')} written to {safe(output)}")


def show_bytes(
    path: WhereElseEmbedded = EMBEDDED,
    *,
    tensor: Annotated[str | None, typer.Option(metavar="NAME", help="Start at this tensor's first byte.")] = None,
    at: Annotated[int | None, typer.Option(metavar="OFFSET", help="Start at this byte, and say what it is.")] = None,
    count: Annotated[int, typer.Option(metavar="N", min=1, max=_MOST_NBYTES, help="How many bytes.")] = _SHOWN_NBYTES,
    json: Json = None,
) -> None:
    """The file's bytes in hex, each beside the header token or tensor element that owns it."""
    from labkit.report.plain import plain
    from labkit.report.storage_bytes import render_rows, rows_json
    from labkit.storage.byteview import ByteView

    if tensor is not None and at is not None:
        raise ArgumentError("--tensor and --at were both given", fix="give one of them")
    with ByteView(file_with(path, tensor)) as view:
        begin = view.header.span(tensor)[0] if tensor is not None else at or 0
        rows = view.rows(min(begin, view.header.file_nbytes - 1) if tensor else begin, count)
        meaning = view.meaning(at) if at is not None else None
    if json is not None:
        write_json(rows_json(rows) | ({"meaning": str(meaning)} if meaning else {}), json)
    if json != "-":
        show(render_rows(rows, width=output().width))
        if meaning is not None:
            show(plain(meaning))


def check(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]…",
            help="Safetensors files, or snapshot folders (default: the embedded checkpoint).",
            show_default=False,
        ),
    ] = None,
    *,
    json: Json = None,
) -> int:
    """Every defect with its code, and what other readers would make of it: exit 0 sound, 1 defects, 2 no such file."""
    from labkit.report.storage_findings import check_json, render_check
    from labkit.storage.checking import check_path

    places = paths or [Path(EMBEDDED)]
    found = []
    for place in places:
        found.append(check_path(place))
        if json != "-":
            show(render_check(found[-1], place))
    if json is not None:
        every = [check_json(each) for each in found]
        write_json(every[0] if len(every) == 1 else every, json)
    return max(each.return_code for each in found)


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A safetensors file, or a snapshot folder.")],
    b: Annotated[str, typer.Argument(metavar="B", help="What to compare it with.")],
    *,
    everything: Annotated[bool, typer.Option("--all", help="List the tensors that are the same, too.")] = False,
    json: Json = None,
) -> int:
    """How two checkpoints differ, tensor by tensor, bit for bit: exit 0 same, 1 differs, 2 cannot tell."""
    with progress() as say:
        say("loading")
        from labkit.report.storage_findings import diff_json, render_diff
        from labkit.storage import open_snapshot
        from labkit.storage.comparison import compare_snapshots

        with open_snapshot(a, mode="copy") as first, open_snapshot(b, mode="copy") as second:
            found = compare_snapshots(first, second, progress=say)
    if json is not None:
        write_json(diff_json(found), json)
    if json != "-":
        show(render_diff(found, show_same=everything))
    return found.return_code


def selftest(
    *,
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the crafted files here and keep them.")
    ] = None,
    json: Json = None,
) -> int:
    """Write a battery of crafted files and show that each is refused or accepted as it must be."""
    from tempfile import TemporaryDirectory

    from labkit.report.storage_findings import render_selftest, selftest_json
    from labkit.storage.selftest import run_selftest

    with TemporaryDirectory() as temporary:
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
        results = list(run_selftest(keep or Path(temporary)))
    if json is not None:
        write_json(selftest_json(results), json)
    if json != "-":
        show(render_selftest(results))
    return 0 if all(result.passed for result in results) else 1


def read_headers(path: str) -> "tuple[list[Header], tuple[str, ...]]":
    """The headers of a file, or of every shard of a snapshot folder, without torch."""
    from labkit.storage.header import read_header
    from labkit.storage.places import is_file
    from labkit.storage.shards import read_snapshot_headers

    return ([read_header(path)], ()) if is_file(path) else read_snapshot_headers(path)


def file_with(path: str, tensor: str | None) -> str:
    """The file itself, or the one of a snapshot that holds the tensor (its first, unless a tensor is given)."""
    from labkit.storage.places import is_file

    if is_file(path):
        return path
    headers, _ = read_headers(path)
    if tensor is None:
        return headers[0].name
    for header in headers:
        if tensor in header.entries:
            return header.name
    raise UnknownNameError.near("tensor", tensor, [name for header in headers for name in header.entries], where=path)


def parse_rows(text: str) -> tuple[int, int]:
    """``A:B`` -> two numbers.

    >>> parse_rows("2:5")
    (2, 5)
    """
    first, _, last = text.partition(":")
    start, stop = whole_number(first), whole_number(last)
    if start is None or stop is None:
        raise ArgumentError("not a range of rows", expected="A:B, as in 0:10", got=shown(text))
    return start, stop


def _largest_first(row: "tuple[Header, Entry]") -> tuple[int, str]:
    return -row[1].nbytes, row[1].name
