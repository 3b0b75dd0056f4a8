"""Strings from files -> text for a terminal: names, notes and metadata that anybody may have written; and empty tables.

Every renderer shows them through here, never as a bare ``str``, which rich would also read as markup.
"""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from labkit.outside import safe


def plain(text: object, style: str = "") -> Text:
    """One line with control and other unprintable characters as escapes, and no markup of its own.

    >>> plain("a\\x1b[31m\\u202eb [bold]").plain
    'a\\\\x1b[31m\\\\u202eb [bold]'
    """
    return Text(safe(text), style=style)


def plain_lines(text: object, style: str = "") -> Text:
    """As ``plain``, for a text of several lines."""
    return Text(safe(text, keep="\n"), style=style)


def columns(
    names: Sequence[str], numbers: Sequence[str] = (), *, right: Sequence[str] = (), title: Text | str | None = None
) -> Table:
    """An empty table, without a frame as every table here: columns of text that fold where the terminal is narrow
    (those in ``right`` flush right), then columns of numbers that never do.
    """
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table
