"""What the commands share: where text goes, and how a file's own strings are made safe for a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def safe(text: object) -> str:
    """The text with control characters written as escapes, so that a name in a file cannot drive a terminal.

    >>> safe("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


def complain(message: str) -> None:
    """One line on standard error."""
    print(f"labkit: {safe(message)}", file=sys.stderr)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A spinner on standard error that says what is being done; silent where that is not a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("starting") as status:
        yield lambda step: status.update(safe(step))


def write_json(value: Any, target: str) -> None:
    """Write plain values as JSON to a file, or to standard output where the target is ``-``."""
    from labkit.report.json import json_text

    text = json_text(value) + "\n"
    if target == "-":
        sys.stdout.write(text)
        return
    from labkit.atomic import replacing

    with replacing(target) as file:
        file.write(text.encode("utf-8"))
