"""A place that bytes are read from, by position: a local file here, a remote one in ``remote``.

In: a path. Out: exactly the bytes asked for, or an error that says why not; never fewer, never a signal.
"""

import os
import stat
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from labkit.errors import FileAccessError, MissingFileError
from labkit.outside import path_of

_READ_AT_ONCE = 1 << 30  # bytes; the kernel hands out at most 2 GiB - 4 KiB a call
_SHARED_NBYTES = 1 << 22  # below this, starting a thread costs more than a second reader saves
_READERS = min(4, os.cpu_count() or 1)


class ByteSource(Protocol):
    """What the reader needs of a file: its name, its size in bytes, and any range of it."""

    @property
    def name(self) -> str:
        """What to call it in messages."""
        ...

    @property
    def nbytes(self) -> int:
        """Size in bytes when it was opened."""
        ...

    def read_into(self, begin: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``begin`` on."""
        ...

    def close(self) -> None:
        """Give back what was opened."""
        ...


def read_bytes(source: ByteSource, begin: int, nbytes: int) -> bytes:
    """``nbytes`` bytes of ``source`` from ``begin`` on."""
    buffer = bytearray(nbytes)
    source.read_into(begin, memoryview(buffer))
    return bytes(buffer)


class LocalFile:
    """A regular file, open for reading; remembers its size and time so that a later change is noticed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path_of(path)
        self.handle = _open_regular(self.path)
        self._close = weakref.finalize(self, os.close, self.handle)  # also where nobody calls close
        self._lock = threading.Lock()
        facts = os.fstat(self.handle)
        self._size = facts.st_size
        self._modified = facts.st_mtime_ns

    @property
    def name(self) -> str:
        """The path as it was given."""
        return str(self.path)

    @property
    def nbytes(self) -> int:
        """Size in bytes when it was opened."""
        return self._size

    def require_unchanged(self) -> None:
        """Raise ``FileAccessError`` where the open file shrank, grew or was written to since it was opened."""
        facts = os.fstat(self.handle)
        if facts.st_size != self._size:
            verb = "shrank" if facts.st_size < self._size else "grew"
            raise FileAccessError(
                f"the file {verb} since it was opened",
                where=self.path,
                expected=f"{self._size} bytes",
                got=f"{facts.st_size} bytes",
                fix="open it again when its writer is done",
            )
        if facts.st_mtime_ns != self._modified:
            raise FileAccessError(
                "the file was written to since it was opened",
                where=self.path,
                fix="open it again when its writer is done",
            )

    def read_into(self, begin: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``begin`` on; a short file is an error, not a signal.

        A large range is read by a few threads at once, because the time goes into filling new pages of memory.
        """
        if len(buffer) < _SHARED_NBYTES or _READERS == 1 or not hasattr(os, "preadv"):
            self._read_range(begin, buffer)
            return
        step = -(-len(buffer) // _READERS)
        starts = range(0, len(buffer), step)
        with ThreadPoolExecutor(_READERS) as readers:  # of this call alone: a kept pool would not survive a fork
            parts = [readers.submit(self._read_range, begin + at, buffer[at : at + step]) for at in starts]
        for part in parts:
            part.result()

    def _read_range(self, begin: int, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            part = buffer[done : done + _READ_AT_ONCE]
            try:
                count = self._read_some(begin + done, part)
            except OSError as error:
                raise FileAccessError(f"cannot read: {error.strerror}", where=self.path) from error
            if count == 0:
                raise FileAccessError(
                    f"the file ends inside the range [{begin}, {begin + len(buffer)})",
                    where=self.path,
                    expected=f"{len(buffer)} bytes",
                    got=f"{done} bytes",
                    fix="it was truncated since it was opened; fetch or save it again",
                )
            done += count

    def _read_some(self, begin: int, buffer: memoryview) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self.handle, [buffer], begin)
        with self._lock:  # no positioned reads here: the position is shared
            os.lseek(self.handle, begin, os.SEEK_SET)
            data = os.read(self.handle, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the file; memory maps of it stay alive."""
        self._close()


def _open_regular(path: Path) -> int:
    try:
        mode = path.stat().st_mode  # before opening, because opening a pipe would wait for its writer
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise FileAccessError(f"it is {kind}", where=path, expected="a safetensors file")
        return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError as error:
        dangling = path.is_symlink()
        raise MissingFileError(
            "the link leads nowhere" if dangling else "no such file",
            where=path,
            got=str(path.readlink()) if dangling else None,
            fix="fetch the snapshot again" if dangling else "check the path",
        ) from error
    except FileAccessError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FileAccessError(f"cannot open: {reason}", where=path) from error
