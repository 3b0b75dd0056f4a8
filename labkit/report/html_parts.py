"""Small pieces of an HTML page: escaping, elements, tables. Every string goes through ``escaped``."""

import html
from collections.abc import Iterable, Sequence

from labkit.outside import safe


class Markup(str):
    """Text that is HTML already; anything else is escaped when it is put into an element."""

    __slots__ = ()


def escaped(value: object) -> Markup:
    """HTML of a value: markup as it is, else the text with control and format characters shown as escapes.

    >>> print(escaped("<b>\\x1b & \\u202e"))
    &lt;b&gt;\\x1b &amp; \\u202e
    """
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(safe(value, keep="\n"), quote=True))


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """One element; ``class_`` is the attribute ``class``, and an underscore inside a name a hyphen.

    >>> print(element("p", "1 < 2", class_="note"))
    <p class="note">1 &lt; 2</p>
    """
    stated = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{stated}>{joined(children)}</{tag}>")


def joined(parts: Iterable[object]) -> Markup:
    """Parts one after another."""
    return Markup("".join(escaped(part) for part in parts))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numeric: Sequence[int] = ()) -> Markup:
    """A table that scrolls by itself where the window is narrow; a row may be ``(class, cells)``-marked by ``Row``."""
    head = element(
        "tr", *(element("th", name, scope="col", class_=_kind(i, numeric)) for i, name in enumerate(columns))
    )
    body = joined(
        element(
            "tr",
            *(element("th" if i == 0 else "td", cell, class_=_kind(i, numeric)) for i, cell in enumerate(row)),
            class_=getattr(row, "kind", None),
        )
        for row in rows
    )
    return element(
        "div",
        element("table", element("thead", head), element("tbody", body)),
        class_="scroll",
        tabindex=0,
        role="group",
        aria_label="Table",
    )


class Row(tuple[object, ...]):
    """The cells of a row, with a class."""

    kind: str | None

    def __new__(cls, *cells: object, kind: str | None = None) -> "Row":
        """The cells, and the class of the row."""
        row = super().__new__(cls, cells)
        row.kind = kind
        return row


def _kind(column: int, numeric: Sequence[int]) -> str | None:
    return "n" if column in numeric else None


def code(text: object) -> Markup:
    """A name or a number as the machine has it."""
    return element("code", text)
