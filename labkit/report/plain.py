"""Strings from files -> text for a terminal: names, notes and metadata that anybody may have written.

Every renderer shows them through here, never as a bare ``str``, which rich would also read as markup.
"""

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
