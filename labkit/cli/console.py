"""What the commands share: where text goes, and how a file's own strings are made safe for a terminal."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.outside import safe

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_ENDLESS = 1_000_000
"""Columns where standard output is no terminal: no table and no line is ever cut or wrapped there."""


def output() -> "Console":
    """Standard output: as wide as the terminal, or endless where it is a pipe or a file."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _ENDLESS)


def show(*contents: "RenderableType") -> None:
    """Tables and prose on standard output, one below the other, in colour where that is a terminal."""
    output().print(*contents, sep="\n", soft_wrap=not sys.stdout.isatty())


def show_record(record: object) -> None:
    """The text form of a record on standard output, made safe line by line."""
    print(safe(record, keep="\n"))


def show_text(text: str) -> None:
    """A text as it is, at once; where a terminal would act on control characters they are written as escapes."""
    if sys.stdout.isatty():
        text = safe(text, keep="\n\t")
    sys.stdout.write(text)
    sys.stdout.flush()


def complain(message: str) -> None:
    """One line on standard error."""
    print(f"labkit: {safe(message)}", file=sys.stderr)


def tell(notes: Iterable[str]) -> None:
    """Notes on standard error, a line each."""
    for note in notes:
        complain(f"note: {note}")


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A spinner on standard error that says what is being done; silent where that is not a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    with console.status("starting") as status:
        yield lambda step: status.update(Text(safe(step)))


def write_json(value: Any, target: str) -> None:
    """Write plain values as JSON to a file, or to standard output where the target is ``-``."""
    from labkit.report.json import json_text

    text = json_text(value) + "\n"
    if target == "-":
        sys.stdout.write(text if (sys.stdout.encoding or "utf-8").lower().startswith("utf") else _ascii(text))
        return
    write_text(text, target)


def write_text(text: str, target: str | Path) -> None:
    """Write a whole file or none."""
    from labkit.atomic import replacing

    with replacing(target) as file:
        file.write(text.encode("utf-8", "backslashreplace"))  # \\udcff, as a name that is no UTF-8 has, is JSON


def _ascii(text: str) -> str:
    """JSON text in ASCII alone: other characters stand in strings only, where JSON has escapes for them."""
    return "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in text)
