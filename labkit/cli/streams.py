"""The standard streams in working order: a closed one fails in plain words, none stops at a character it cannot encode.

Python's own are wrapped. Whatever cannot be written to standard output, or read from standard input, is told as an
error; what cannot be written to standard error is dropped, because there is nowhere left to tell it.
"""

import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

from labkit.errors import FileAccessError

_NAMES = ("standard input", "standard output", "standard error")


class ReaderGoneError(Exception):
    """Nobody reads standard output any more, as after ``| head``; no OSError, which rich takes for its own affair."""


def mend_streams() -> None:
    """Put wrapped streams in the places of ``sys``."""
    sys.stdin, sys.stdout, sys.stderr = (
        _wrapped(stream, number) for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr))
    )


def settle_streams() -> None:
    """Drop what standard output refuses, so that Python's own last flush does not fail again."""
    try:
        sys.stdout.flush()
    except (OSError, ReaderGoneError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Raw(io.RawIOBase):
    """The bytes of a standard stream; failures are labkit's errors."""

    def __init__(self, inner: Any, number: int) -> None:
        self._inner = inner
        self._number = number

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return bool(self._inner.isatty())

    def readable(self) -> bool:
        return self._number == 0

    def writable(self) -> bool:
        return self._number != 0

    def readinto(self, buffer: Any) -> int | None:
        try:
            return self._inner.readinto(buffer)  # type: ignore[no-any-return]
        except OSError as error:
            raise FileAccessError(f"cannot read: {error.strerror}", where=_NAMES[self._number]) from error

    def write(self, data: Any) -> int | None:
        try:
            return self._inner.write(data)  # type: ignore[no-any-return]
        except BrokenPipeError as error:
            raise ReaderGoneError from error
        except OSError as error:
            raise FileAccessError(f"cannot write: {error.strerror}", where=_NAMES[self._number]) from error


class _Complaints(_Raw):
    """The bytes of standard error."""

    def write(self, data: Any) -> int | None:
        with suppress(ReaderGoneError, FileAccessError):
            return super().write(data)
        return len(data)


def _wrapped(stream: TextIO | None, number: int) -> TextIO:
    raw: Any
    if stream is None:
        raw, encoding, at_once = _closed(number), "utf-8", False
    else:
        raw = getattr(stream.buffer, "raw", stream.buffer)  # python -u has no buffer in between
        encoding, at_once = (
            stream.encoding,
            bool(stream.line_buffering) or bool(getattr(stream, "write_through", False)),
        )
    if number == 0:
        return io.TextIOWrapper(io.BufferedReader(_Raw(raw, number)), encoding)
    guarded = _Complaints(raw, number) if number == 2 else _Raw(raw, number)
    return io.TextIOWrapper(io.BufferedWriter(guarded), encoding, "backslashreplace", line_buffering=at_once)


def _closed(number: int) -> io.FileIO:
    """A stream that fails at every use; it holds the number, which the next file opened would otherwise get."""
    handle = os.open(os.devnull, os.O_WRONLY if number == 0 else os.O_RDONLY)
    if handle != number:
        os.dup2(handle, number)
        os.close(handle)
    return io.FileIO(number, "r" if number == 0 else "w", closefd=False)
