"""An open file, a place in it -> the view record of the hex viewer, and the record -> its static twin.

A view is plain values: only the visible rows, each byte's owner as an index into a short list, and what the chosen byte means.
Strings of the file stay strings; the script puts them into text nodes, the twin escapes them.
"""

from html import escape
from itertools import islice
from typing import TypedDict

from labkit.storage.byteview import ByteView
from labkit.storage.owners import ROW_NBYTES, Owner

MAXIMUM_FOUND = 40
"""Names in the list of found tensors: a file may hold 100,000."""
COLOURS = 5
"""Tensors next to each other get different colours of this many."""


class OwnerView(TypedDict):
    """Who owns some bytes: a kind, the colour of a tensor, and the words for it."""

    kind: str
    colour: int
    tensor: str
    meaning: str
    begin: int
    end: int


class RowView(TypedDict):
    """One row: its offset, its bytes in hex, and for each byte the number of its owner."""

    offset: int
    bytes: str
    owners: list[int]


class FieldView(TypedDict):
    """One bit field of the chosen element."""

    name: str
    bits: str


class FoundView(TypedDict):
    """One tensor that fits the search."""

    name: str
    dtype: str
    shape: list[int]
    begin: int
    end: int


class HexView(TypedDict):
    """Everything the viewer shows."""

    file: str
    nbytes: int
    top: int
    at: int
    rows: list[RowView]
    owners: list[OwnerView]
    meaning: str
    fields: list[FieldView]
    found: list[FoundView]
    hidden: int
    """Tensors that fit the search and are not listed."""


def hex_view(file: ByteView, *, top: int, at: int, count: int, search: str) -> HexView:
    """The view of ``count`` rows with the chosen byte ``at`` among them.

    ``top`` and ``at`` are brought into the file, and ``top`` to the start of a row from which ``at`` can be seen.
    """
    nbytes = file.header.file_nbytes
    at = min(max(at, 0), nbytes - 1)
    row = at // ROW_NBYTES
    first = min(max(top // ROW_NBYTES, row - count + 1, 0), row)
    rows = file.rows(first * ROW_NBYTES, count * ROW_NBYTES)
    owners: dict[Owner, int] = {}
    for each in rows:
        for owner in each.owners:
            owners.setdefault(owner, len(owners))
    meaning = file.meaning(at)
    names = file.owners.names
    if search:
        names = [name for name in names if search.casefold() in name.casefold()]
    return HexView(
        file=file.header.path.name,
        nbytes=nbytes,
        top=first * ROW_NBYTES,
        at=at,
        rows=[
            RowView(
                offset=each.offset,
                bytes=each.octets.hex(),
                owners=[
                    owners[owner] for owner in each.owners for _ in range(_shared(owner, each.offset, len(each.octets)))
                ],
            )
            for each in rows
        ],
        owners=[_owner_view(owner, file) for owner in owners],
        meaning=str(meaning),
        fields=[FieldView(name=name, bits=bits) for name, bits in (meaning.fields.fields if meaning.fields else ())],
        found=[_found(file, name) for name in islice(names, MAXIMUM_FOUND)],
        hidden=max(len(names) - MAXIMUM_FOUND, 0),
    )


def _shared(owner: Owner, begin: int, nbytes: int) -> int:
    """Bytes that an owner has in a row."""
    return min(owner.end, begin + nbytes) - max(owner.begin, begin)


def _owner_view(owner: Owner, file: ByteView) -> OwnerView:
    return OwnerView(
        kind=owner.kind,
        colour=file.owners.place_of(owner.tensor) % COLOURS if owner.tensor is not None else 0,
        tensor=owner.tensor or "",
        meaning=owner.meaning,
        begin=owner.begin,
        end=owner.end,
    )


def _found(file: ByteView, name: str) -> FoundView:
    entry = file.header.entries[name]
    begin, end = file.header.span(name)
    return FoundView(name=name, dtype=entry.dtype, shape=list(entry.shape), begin=begin, end=end)


def hex_twin(view: HexView) -> str:
    """The visible rows as an HTML table; a byte's owner is said where it changes."""
    lines = []
    last = -1
    for row in view["rows"]:
        told = [owner for number, owner in enumerate(row["owners"]) if owner != ([last, *row["owners"]])[number]]
        last = row["owners"][-1]
        octets = " ".join(row["bytes"][i : i + 2] for i in range(0, len(row["bytes"]), 2))
        words = "; ".join(
            escape(_words(view["owners"][owner])) for owner in dict.fromkeys(told) if _is_told(view, owner)
        )
        text = escape("".join(_character(row["bytes"][i : i + 2]) for i in range(0, len(row["bytes"]), 2)))
        lines.append(
            f"<tr><td>{row['offset']:,}</td><td><code>{octets}</code></td><td><code>{text}</code></td><td>{words}</td></tr>"
        )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("offset", "bytes", "text", "what begins here"))
    caption = f"{escape(view['file'])}, {view['nbytes']:,} bytes, from byte {view['top']:,}"
    return (
        f"<div><table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
        f"<p>{escape(view['meaning'])}</p></div>"
    )


def _is_told(view: HexView, owner: int) -> bool:
    return view["owners"][owner]["kind"] != "punctuation"


def _words(owner: OwnerView) -> str:
    return f"{owner['meaning']} of {owner['tensor']!r}" if owner["kind"] == "element" else owner["meaning"]


def _character(octet: str) -> str:
    code = int(octet, 16)
    return chr(code) if 32 <= code < 127 else "·"
