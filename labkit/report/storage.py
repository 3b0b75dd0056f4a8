"""Records of the storage room -> rich renderables, plain values for JSON, and sizes in words.

Names and metadata come from files that anybody may have written: here they are made printable before they are shown.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from labkit.report.plain import columns, plain
from labkit.storage import Entry, Header
from labkit.words import counted

_SHOWN_METADATA = 20
_SHOWN_CHARACTERS = 100


def size_text(nbytes: int) -> str:
    """A size in bytes, and in the binary unit that suits it.

    >>> size_text(548105171)
    '548,105,171 bytes (522.7 MiB)'
    """
    scaled, unit = float(nbytes), ""
    for unit in ("", "KiB", "MiB", "GiB", "TiB"):
        if scaled < 1024 or unit == "TiB":
            break
        scaled /= 1024
    return f"{nbytes:,} bytes" + (f" ({scaled:.1f} {unit})" if unit else "")


def header_json(headers: Sequence[Header]) -> dict[str, Any]:
    """Everything the headers say, as plain values."""
    return {
        "files": [
            {
                "path": header.name,
                "file_nbytes": header.file_nbytes,
                "header_nbytes": header.header_nbytes,
                "data_start": header.data_start,
                "metadata": dict(header.metadata),
                "tensors": [entry_json(header, header.entries[name]) for name in header.names()],
            }
            for header in headers
        ]
    }


def entry_json(header: Header, entry: Entry) -> dict[str, Any]:
    """One tensor's entry, with its bytes counted from the start of the file."""
    begin, end = header.span(entry.name)
    return {
        "name": entry.name,
        "dtype": entry.dtype,
        "shape": list(entry.shape),
        "numel": entry.numel,
        "nbytes": entry.nbytes,
        "begin": begin,
        "end": end,
    }


def render_info(headers: Sequence[Header], notes: Iterable[str] = ()) -> RenderableType:
    """What a file or snapshot is: sizes, metadata, and how many tensors of which dtype."""
    parts: list[RenderableType] = [_facts(header) for header in headers[:1]] if len(headers) == 1 else [_files(headers)]
    parts.append(_dtypes(headers))
    parts.extend(plain(f"note: {note}") for note in notes)
    return Group(*parts)


def tensors_json(rows: Iterable[tuple[Header, Entry]]) -> dict[str, Any]:
    """Every tensor with its file, as plain values."""
    return {"tensors": [{"file": header.name} | entry_json(header, entry) for header, entry in rows]}


def render_tensors(rows: Sequence[tuple[Header, Entry]]) -> RenderableType:
    """A table of tensors with their bytes in the file; the file is named where there are several."""
    several = len({header.name for header, _ in rows}) > 1
    table = columns(("tensor", "dtype", "shape"), ("elements", "bytes", "begin", "end"))
    if several:
        table.add_column("file", overflow="fold")
    for header, entry in rows:
        begin, end = header.span(entry.name)
        numbers = [f"{value:,}" for value in (entry.numel, entry.nbytes, begin, end)]
        file = [plain(header.path.name)] if several else []
        table.add_row(plain(entry.name), entry.dtype, str(list(entry.shape)), *numbers, *file)
    return table


def _facts(header: Header) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("file", plain(header.name))
    table.add_row("size", size_text(header.file_nbytes))
    table.add_row("header", f"{header.header_nbytes:,} bytes, data starts at byte {header.data_start:,}")
    table.add_row("tensors", f"{len(header.entries):,}")
    for key, value in list(header.metadata.items())[:_SHOWN_METADATA]:
        cut = f"{value[:_SHOWN_CHARACTERS]}… ({len(value):,} characters)"
        table.add_row(plain(f"  {key}"), plain(value if len(value) <= _SHOWN_CHARACTERS else cut))
    if len(header.metadata) > _SHOWN_METADATA:
        table.add_row("", f"and {counted(len(header.metadata) - _SHOWN_METADATA, 'more metadata key')}")
    return table


def _files(headers: Sequence[Header]) -> Table:
    table = columns(("file",), ("bytes", "header", "tensors"))
    for header in headers:
        table.add_row(
            plain(header.name), f"{header.file_nbytes:,}", f"{header.header_nbytes:,}", f"{len(header.entries):,}"
        )
    return table


def _dtypes(headers: Sequence[Header]) -> Table:
    tensors: Counter[str] = Counter()
    numel: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for header in headers:
        for entry in header.entries.values():
            tensors[entry.dtype] += 1
            numel[entry.dtype] += entry.numel
            nbytes[entry.dtype] += entry.nbytes
    table = columns(("dtype",), ("tensors", "elements", "bytes"))
    for dtype in sorted(nbytes, key=lambda code: -nbytes[code]):
        table.add_row(dtype, f"{tensors[dtype]:,}", f"{numel[dtype]:,}", f"{nbytes[dtype]:,}")
    if len(nbytes) != 1:
        total = [sum(counter.values()) for counter in (tensors, numel, nbytes)]
        table.add_row("all", *(f"{value:,}" for value in total), style="bold")
    return table
