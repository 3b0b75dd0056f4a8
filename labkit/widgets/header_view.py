"""A checked header, a search and a page -> the view record of the header explorer, and the record -> its static twin.

A view is plain values: one page of tensors, and everything about the chosen one.
"""

from html import escape
from typing import TypedDict

from labkit.storage.dtypes import DTYPES
from labkit.storage.header import Header
from labkit.words import counted

PAGE = 25
"""Tensors on a page."""
SORTS = ("offset", "name", "size")


class TensorView(TypedDict):
    """One tensor of the page; ``begin`` and ``end`` are bytes of the file."""

    name: str
    dtype: str
    shape: list[int]
    numel: int
    nbytes: int
    begin: int
    end: int


class ChosenView(TypedDict):
    """The chosen tensor, in lines of a name and a value."""

    name: str
    facts: list[list[str]]


class HeaderView(TypedDict):
    """Everything the explorer shows."""

    file: str
    facts: list[list[str]]
    metadata: list[list[str]]
    search: str
    sort: str
    page: int
    pages: int
    count: int
    tensors: list[TensorView]
    chosen: ChosenView | None


def header_view(header: Header, *, search: str, sort: str, page: int, chosen: str | None) -> HeaderView:
    """One page of the tensors whose name holds ``search``, in the order of ``sort``."""
    names = [name for name in header.names() if search.casefold() in name.casefold()]
    if sort == "name":
        names.sort()
    elif sort == "size":
        names.sort(key=lambda name: -header.entries[name].nbytes)
    pages = max(-(-len(names) // PAGE), 1)
    page = min(max(page, 0), pages - 1)
    return HeaderView(
        file=header.path.name,
        facts=[
            ["size", f"{header.file_nbytes:,} bytes"],
            ["header length", f"{header.header_nbytes:,} bytes, {header.padding_nbytes:,} of them padding"],
            ["data starts at", f"byte {header.data_start:,}"],
            ["tensors", f"{len(header.entries):,}"],
        ],
        metadata=[[key, value] for key, value in list(header.metadata.items())[:PAGE]],
        search=search,
        sort=sort if sort in SORTS else "offset",
        page=page,
        pages=pages,
        count=len(names),
        tensors=[_tensor_view(header, name) for name in names[page * PAGE : (page + 1) * PAGE]],
        chosen=_chosen_view(header, chosen) if chosen is not None and chosen in header.entries else None,
    )


def _tensor_view(header: Header, name: str) -> TensorView:
    entry = header.entries[name]
    begin, end = header.span(name)
    return TensorView(
        name=name,
        dtype=entry.dtype,
        shape=list(entry.shape),
        numel=entry.numel,
        nbytes=entry.nbytes,
        begin=begin,
        end=end,
    )


def _chosen_view(header: Header, name: str) -> ChosenView:
    entry = header.entries[name]
    begin, end = header.span(name)
    dtype = DTYPES[entry.dtype]
    aligned = "aligned" if begin % max(dtype.bits // 8, 1) == 0 else "not aligned"
    return ChosenView(
        name=name,
        facts=[
            ["dtype", f"{entry.dtype}: {dtype.bits} bits, {dtype.meaning}"],
            ["shape", f"{list(entry.shape)}, {entry.numel:,} elements"],
            ["data_offsets", f"[{entry.begin:,}, {entry.end:,}) from the start of the data"],
            ["bytes of the file", f"[{begin:,}, {end:,}), {entry.nbytes:,} bytes, {aligned}"],
        ],
    )


def header_twin(view: HeaderView) -> str:
    """The page as HTML: the file's facts, then its tensors."""
    facts = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in (*view["facts"], *view["metadata"])
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("tensor", "dtype", "shape", "bytes", "begin", "end"))
    rows = "".join(_twin_row(tensor) for tensor in view["tensors"])
    caption = f"{counted(view['count'], 'tensor')}, page {view['page'] + 1} of {view['pages']}"
    return (
        f"<div><p>{escape(view['file'])}</p><dl>{facts}</dl>"
        f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _twin_row(tensor: TensorView) -> str:
    cells = [tensor["name"], tensor["dtype"], str(tensor["shape"])]
    cells += [f"{number:,}" for number in (tensor["nbytes"], tensor["begin"], tensor["end"])]
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
