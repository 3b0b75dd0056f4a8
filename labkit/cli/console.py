"""What the commands share: where text goes, and how a file's own strings are made safe for a terminal."""

import sys


def safe(text: object) -> str:
    """The text with control characters written as escapes, so that a name in a file cannot drive a terminal.

    >>> safe("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


def complain(message: str) -> None:
    """One line on standard error."""
    print(f"labkit: {safe(message)}", file=sys.stderr)
