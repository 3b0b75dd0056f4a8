"""Rows of bytes -> a coloured hex dump: each byte in its owner's colour, and beside it what the row holds."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from labkit.report.plain import plain
from labkit.storage.owners import ROW_NBYTES, HexRow, Owner

_STYLES = {
    "prefix": "bold magenta",
    "key": "cyan",
    "value": "green",
    "punctuation": "dim",
    "padding": "dim",
}
_INDENT = 14
_WIDE = 110
_TENSOR_STYLES = ("bold yellow", "bold blue", "bold red", "bold green", "bold cyan")


def render_rows(rows: Sequence[HexRow], *, width: int) -> RenderableType:
    """The rows as offset, hex, characters, and the meanings in them: beside, or below where ``width`` has no room."""
    styles = _Styles()
    lines: list[Text] = []
    for row in rows:
        line = _line(row, styles)
        told = _told(row)
        if width >= _WIDE:
            lines.append(line.append_text(told))
        else:
            lines.extend((line, Text(" " * _INDENT).append_text(told)))
    return Group(*lines)


def rows_json(rows: Iterable[HexRow]) -> dict[str, Any]:
    """The rows and their owners, as plain values."""
    return {
        "rows": [
            {
                "offset": row.offset,
                "bytes": row.octets.hex(),
                "owners": [
                    {
                        "kind": each.kind,
                        "begin": each.begin,
                        "end": each.end,
                        "tensor": each.tensor,
                        "meaning": each.meaning,
                    }
                    for each in row.owners
                ],
            }
            for row in rows
        ]
    }


class _Styles:
    """A colour for each tensor, in turn, so that neighbours differ."""

    def __init__(self) -> None:
        self._given: dict[str | None, str] = {}

    def of(self, owner: Owner) -> str:
        if owner.kind != "element":
            return _STYLES[owner.kind]
        return self._given.setdefault(owner.tensor, _TENSOR_STYLES[len(self._given) % len(_TENSOR_STYLES)])


def _line(row: HexRow, styles: _Styles) -> Text:
    line = Text(f"{row.offset:>{_INDENT - 2},}  ", "dim", no_wrap=True)
    characters = Text()
    for place, octet in enumerate(row.octets):
        style = styles.of(_owner_at(row, row.offset + place))
        line.append(f"{octet:02x} ", style)
        characters.append(chr(octet) if 32 <= octet < 127 else "·", style)
    missing = ROW_NBYTES - len(row.octets)
    return line.append("   " * missing).append_text(characters).append(" " * (missing + 2))


def _owner_at(row: HexRow, offset: int) -> Owner:
    return next(owner for owner in row.owners if owner.begin <= offset < owner.end)


def _told(row: HexRow) -> Text:
    """The row's owners in words, each tensor named once: what its header tokens say, or its elements as a range."""
    told = (owner for owner in row.owners if owner.kind != "punctuation")
    parts = [
        _elements(name, [*owners]) if element else _tokens(name, owners)
        for (name, element), owners in groupby(told, key=lambda owner: (owner.tensor, owner.kind == "element"))
    ]
    return plain(", ".join(parts))


def _tokens(tensor: str | None, owners: Iterable[Owner]) -> str:
    if tensor is None:
        return ", ".join(owner.meaning for owner in owners)
    said = (owner.meaning.removesuffix(f" of tensor {tensor!r}").removeprefix("the ") for owner in owners)
    return f"{tensor}: {', '.join(said)}"


def _elements(tensor: str | None, owners: Sequence[Owner]) -> str:
    first, last = (
        each.meaning.split(" of ")[0].removeprefix("elements ").removeprefix("element ")
        for each in (owners[0], owners[-1])
    )
    return f"{tensor} {first}" + (f" … {last}" if len(owners) > 1 else "")
