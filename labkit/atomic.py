"""Replace a file as a whole or not at all: temporary sibling, fsync, rename, fsync of the folder.

In: a path. Out: an open file that becomes the path's content when its block ends well, and vanishes when it does not.
At any moment, kill -9 and a full disk included, the path holds the whole old content or the whole new one.
"""

import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from labkit.errors import FileAccessError, MissingFileError

if os.name == "posix":
    import fcntl

_SUFFIX = ".labkit-tmp"
_NEW_FILE_MODE = 0o666  # less the umask, as any new file
_ORPHAN_AGE = 60.0  # seconds without a write; a living writer's temporary is younger, or locked


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write; when the block ends without an error it takes the place of ``path``.

    A link is followed and its target replaced; an existing file's mode is kept.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "a"
    >>> with replacing(path) as file:
    ...     _ = file.write(b"new")
    >>> path.read_bytes(), len(list(path.parent.iterdir()))
    (b'new', 1)

    Raises ``MissingFileError`` where the folder is not there, ``FileAccessError`` where writing fails.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}")
    try:
        if target.is_dir():
            raise FileAccessError("it is a folder", where=path, expected="a file to write")
        if not target.parent.is_dir():
            raise MissingFileError("no such folder", where=target.parent, fix="make it first")
        _remove_orphans(target)
        try:
            with _create(temporary, _mode_of(target)) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(target.parent)
    except (FileAccessError, MissingFileError):
        raise
    except OSError as error:
        raise FileAccessError(
            f"cannot write: {error.strerror or error}", where=path, fix="the old file is untouched"
        ) from error


def sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` last through a power cut."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _mode_of(target: Path) -> int | None:
    with suppress(FileNotFoundError):
        return stat.S_IMODE(target.stat().st_mode)
    return None


def _create(temporary: Path, mode: int | None) -> BinaryIO:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    handle = os.open(temporary, flags, _NEW_FILE_MODE if mode is None else 0o600)
    if os.name == "posix":
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if mode is not None:
            os.fchmod(handle, mode)
    return os.fdopen(handle, "w+b")


def _remove_orphans(target: Path) -> None:
    """Remove what a killed writer of the same file left: temporaries that nobody holds a lock on."""
    if os.name != "posix":
        return
    for orphan in target.parent.glob(f".{_literal(target.name[:100])}.*{_SUFFIX}"):
        with suppress(OSError):
            if time.time() - orphan.stat().st_mtime < _ORPHAN_AGE:
                continue
            handle = os.open(orphan, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                orphan.unlink()
            finally:
                os.close(handle)


def _literal(name: str) -> str:
    """``name`` with the characters that glob gives a meaning made plain."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
