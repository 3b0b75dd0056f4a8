"""What anybody may have written -> plain values: a file's bytes, JSON, whole numbers, text fit for a terminal.

In: a path, or text from a file or a command line. Out: the value, within bounds that are named here, or an error; no
pipe is waited for, no device read without end, no nesting or number of any length ends in an error of Python's own.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any

from labkit.errors import ArgumentError, ArgumentTypeError, FileAccessError, LabkitError, MissingFileError

SMALL_NBYTES = 256 * 2**20
"""Largest config, map, certificate or vocabulary that is read; the released GPT-2's largest is 1 MB."""
MAX_DIGITS = 18
"""Most digits of a whole number: all such numbers fit in 64 bits."""
SHOWN_CHARACTERS = 80
"""Characters of a name or value that a message shows."""
_TO_ZEROS = bytes.maketrans(b"123456789", b"000000000")


class NotJson(ValueError):  # noqa: N818  (told by whoever read the text, as an error of its own kind)
    """A text is no JSON; the words say why."""


class RepeatedKey(NotJson):
    """An object has a key twice, with ``first`` and ``second`` as values."""

    def __init__(self, key: str, first: object, second: object) -> None:
        super().__init__(f"the key {key!r} stands twice")
        self.key = key
        self.first = first
        self.second = second


def path_of(given: object, where: str = "path") -> Path:
    """A path that a caller gave; raises ``ArgumentTypeError`` or ``ArgumentError`` at ``where`` for what is none.

    >>> path_of("models") == path_of(Path("models"))
    True
    """
    name = os.fspath(given) if isinstance(given, str | os.PathLike) else given
    if not isinstance(name, str):
        raise ArgumentTypeError("not a path", where=where, expected="a str or a Path", got=shown_value(given))
    if "\0" in name:
        raise ArgumentError("a path cannot hold a NUL character", where=where, got=shown(name))
    return Path(name)


def refuse_bytes(*given: object, where: str) -> None:
    """Raise ``ArgumentTypeError`` where one is bytes: a text is a str, and ids are no bytes of a text.

    >>> refuse_bytes([1, 2], "a text", where="prompts")
    >>> refuse_bytes("a text", b"a text", where="prompts")
    Traceback (most recent call last):
    labkit.errors.ArgumentTypeError: prompts: bytes are neither a text nor ids (got bytes); decode them to a str, ...
    """
    for each in given:
        if isinstance(each, bytes | bytearray | memoryview):
            raise ArgumentTypeError(
                "bytes are neither a text nor ids",
                where=where,
                got=type(each).__name__,
                fix="decode them to a str, or give ids as a list of whole numbers",
            )


def read_regular(path: str | os.PathLike[str], *, what: str = "file", cap_nbytes: int | None = SMALL_NBYTES) -> bytes:
    """The bytes of a regular file of at most ``cap_nbytes`` (None: of any size); ``what`` names it in errors.

    Raises ``MissingFileError``, ``FileAccessError`` (a folder, a pipe, a device, a file over the cap).

    >>> read_regular(os.devnull)
    Traceback (most recent call last):
    labkit.errors.FileAccessError: /dev/null: not a regular file (got a device); copy what it gives into a file
    """
    try:
        nbytes = require_regular(path, what=what)  # before opening, because opening a pipe would wait
        if cap_nbytes is not None and nbytes > cap_nbytes:
            raise _too_large(path, what, cap_nbytes)
        with Path(path).open("rb") as file:
            data = file.read() if cap_nbytes is None else file.read(cap_nbytes + 1)
    except LabkitError:
        raise
    except OSError as error:
        raise FileAccessError(f"the {what} cannot be read: {error.strerror}", where=path) from error
    if cap_nbytes is not None and len(data) > cap_nbytes:
        raise _too_large(path, what, cap_nbytes)  # it grew, or is one of those that state no size
    return data


def _too_large(path: str | os.PathLike[str], what: str, cap_nbytes: int) -> FileAccessError:
    return FileAccessError(f"too large for a {what}", where=path, expected=f"at most {cap_nbytes:,} bytes")


def require_regular(path: str | os.PathLike[str], *, what: str = "file") -> int:
    """The size in bytes of the regular file at ``path``; ``what`` names it in errors.

    Raises ``MissingFileError`` where nothing is there, ``FileAccessError`` where it is something else.
    """
    try:
        facts = Path(path).stat()
    except FileNotFoundError as error:
        raise MissingFileError(f"there is no such {what}", where=path, fix="check the path") from error
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL byte
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FileAccessError(f"the {what} cannot be read: {reason}", where=shown(path)) from error
    mode = facts.st_mode
    if stat.S_ISDIR(mode):
        raise FileAccessError("it is a folder", where=path, expected="a file")
    if not stat.S_ISREG(mode):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise FileAccessError("not a regular file", where=path, got=kind, fix="copy what it gives into a file")
    return facts.st_size


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text, UTF-8 with or without a byte order mark, every key of an object once.

    >>> parse_json('{"a": [1, 2]}')
    {'a': [1, 2]}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    labkit.outside.NotJson: it nests too deep

    Raises ``NotJson``.
    """
    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        # a call for every number would cost as much as all the rest, so there is one only where a long one stands
        return json.loads(decoded, object_pairs_hook=_once, parse_int=_bounded if _has_long_number(decoded) else None)
    except NotJson:
        raise
    except UnicodeDecodeError as error:
        raise NotJson(f"byte {error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise NotJson(str(error)) from error
    except RecursionError as error:
        raise NotJson("it nests too deep") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                raise RepeatedKey(key, seen[key], value)
            seen[key] = value
    return fields


def _has_long_number(text: str) -> bool:
    return b"0" * (MAX_DIGITS + 1) in text.encode("utf-8", "surrogatepass").translate(_TO_ZEROS)


def _bounded(digits: str) -> int:
    number = whole_number(digits.removeprefix("-"))
    if number is None:
        raise NotJson(f"the number {digits[:8]}… has {len(digits)} characters, at most {MAX_DIGITS} digits are read")
    return -number if digits.startswith("-") else number


def whole_number(text: str) -> int | None:
    """The number that ASCII digits spell; None for any other text, and for one of more than 18 digits.

    >>> whole_number("007"), whole_number("-1"), whole_number("9" * 5000)
    (7, None, None)
    """
    if not (text.isascii() and text.isdecimal()):
        return None
    digits = text.lstrip("0") or "0"
    return int(digits) if len(digits) <= MAX_DIGITS else None


def shown_number(value: float) -> str:
    """A number for a message, where it is of a length to be read.

    >>> shown_number(-2048), shown_number(1.5), shown_number(10**5000)
    ('-2048', '1.5', 'a number of more than 18 digits')
    """
    is_long = type(value) is int and abs(value) >= 10**MAX_DIGITS
    return str(value) if not is_long else f"a number of more than {MAX_DIGITS} digits"


def safe(text: object, *, keep: str = "") -> str:
    """The text with control and other unprintable characters as escapes, but for those to ``keep``.

    So no file can drive a terminal, and no page shows what is not there.

    >>> safe("a\\x1b[31m\\u202eb")
    'a\\\\x1b[31m\\\\u202eb'
    """
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in str(text))


def shown(text: object) -> str:
    """A name or value for a message: quoted, escaped, and cut where it is very long.

    >>> shown("a" * 200)[-22:]
    "aa'... 200 characters)"
    """
    whole = str(text)
    quoted = repr(whole[:SHOWN_CHARACTERS])
    return quoted if len(whole) <= SHOWN_CHARACTERS else f"({quoted}... {len(whole)} characters)"


def shown_value(value: object) -> str:
    """A value of Python for a message, as Python writes it: escaped, and cut where it is very long.

    >>> shown_value(5), shown_value("5"), shown_value([0] * 200)[-18:]
    ('5', "'5'", '... 600 characters')
    """
    whole = safe(repr(value))
    return whole if len(whole) <= SHOWN_CHARACTERS else f"{whole[:SHOWN_CHARACTERS]}... {len(whole)} characters"


def require_whole(value: object, where: str) -> int:
    """The whole number that a caller gave; raises ``ArgumentTypeError`` at ``where`` for anything else, flags too.

    >>> require_whole(5, "tokens")
    5
    >>> require_whole(True, "tokens")
    Traceback (most recent call last):
    labkit.errors.ArgumentTypeError: tokens: not a whole number (got True)
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError("not a whole number", where=where, got=shown_value(value))
    return value
