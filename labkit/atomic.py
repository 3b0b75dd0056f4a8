"""Write a file or a folder as a whole or not at all: temporary sibling, fsync, rename, fsync of the folder around it.

In: a path. Out: an open file, or a folder to fill, that becomes the path's content when its block ends well, and
vanishes when it does not. At any moment, kill -9 and a full disk included, the path holds the whole old content or the
whole new one.
"""

import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from labkit.errors import ArgumentError, FileAccessError, LabkitError, MissingFileError

if os.name == "posix":
    import fcntl

_SUFFIX = ".labkit-tmp"
_NEW_FILE_MODE = 0o666  # less the umask, as any new file
_STEM_NBYTES = 100  # of the target's name in a temporary's; file systems take names of 255 bytes
_ORPHAN_AGE = 60.0  # seconds without a write; a living writer's temporary is younger, or locked
_STDOUT = 1
_DESCRIPTOR = re.compile(r"(?:/dev|/proc/self)/fd/(\d+)")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write; when the block ends without an error it takes the place of ``path``.

    A link is followed and its target replaced; an existing file's mode is kept. A pipe, a device or an open descriptor
    (/dev/stdout, /dev/fd/N) is not replaced: the content goes into it when it is whole.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "a"
    >>> with replacing(path) as file:
    ...     _ = file.write(b"new")
    >>> path.read_bytes(), len(list(path.parent.iterdir()))
    (b'new', 1)

    Raises ``MissingFileError`` where the folder is not there, ``FileAccessError`` where writing fails,
    ``BrokenPipeError`` where nobody reads the pipe any more.
    """
    streaming = is_stream(path)
    try:
        require_file_place(path)
        with _pouring(path) if streaming else _replacing(Path(os.path.realpath(path))) as file:
            yield file
    except (LabkitError, BrokenPipeError):
        raise
    except OSError as error:
        raise FileAccessError(
            f"cannot write: {error.strerror or error}",
            where=path,
            fix=None if streaming else "the old file is untouched",
        ) from error


@contextmanager
def appearing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to fill under a hidden name; when the block ends without an error it appears as ``path``.

    An error that stands at the hidden folder is told of ``path``.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "a"
    >>> with appearing(path) as folder:
    ...     _ = (folder / "b").write_text("new")
    >>> [each.name for each in path.parent.rglob("*")]
    ['a', 'b']

    Raises ``ArgumentError`` where ``path`` is there, ``MissingFileError`` where the folder around it is not,
    ``FileAccessError`` where writing fails.
    """
    target = Path(path)
    require_new_folder(target)
    _remove_orphans(target)
    draft = _temporary_beside(target)
    try:
        draft.mkdir()
        with _held(draft):
            yield draft
            for each in draft.iterdir():
                _sync_file(each)
            sync_folder(draft)
            draft.rename(target)
        sync_folder(target.parent)
    except LabkitError as error:
        if str(draft) in str(error.where):
            error.where = str(error.where).replace(str(draft), str(target))
            error.fix = "nothing was left" if isinstance(error, FileAccessError) else error.fix
        raise
    except OSError as error:
        raise FileAccessError(
            f"cannot write: {error.strerror or error}", where=target, fix="nothing was left"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def require_file_place(path: str | os.PathLike[str]) -> None:
    """Raise what would keep ``replacing`` from writing at ``path``, as far as it can be told without trying.

    Raises ``MissingFileError``, ``FileAccessError``.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = _mode_of(path)
    except OSError as error:
        raise FileAccessError(f"cannot write: {error.strerror}", where=path) from error
    if mode is not None and stat.S_ISDIR(mode):
        raise FileAccessError("it is a folder", where=path, expected="a file to write")
    if mode is not None and (stat.S_ISBLK(mode) or stat.S_ISSOCK(mode)):
        raise FileAccessError("it is a disk or a socket", where=path, expected="a file to write")
    if is_stream(path):
        return
    require_folder(target.parent)


def require_new_folder(path: str | os.PathLike[str]) -> None:
    """Raise what would keep ``appearing`` from making a folder at ``path``, as far as it can be told without trying.

    Raises ``ArgumentError``, ``MissingFileError``, ``FileAccessError``.
    """
    if os.path.lexists(path):
        raise ArgumentError("the folder is already there", where=path, fix="give a new name, or remove it first")
    require_folder(Path(path).parent)


def require_folder_place(path: str | os.PathLike[str]) -> None:
    """Raise what would keep files from being written into ``path``, which may yet have to be made.

    Raises ``MissingFileError``, ``FileAccessError``.
    """
    whole = Path(path).absolute()
    nearest = next(each for each in (whole, *whole.parents) if each.exists())
    if not nearest.is_dir():
        raise FileAccessError("it is a file", where=nearest, expected="a folder")
    require_folder(nearest)


def require_folder(folder: Path) -> None:
    """Raise where there is no folder to write into.

    Raises ``MissingFileError``, ``FileAccessError``.
    """
    if not folder.is_dir():
        raise MissingFileError("no such folder", where=folder, fix="make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise FileAccessError("the folder cannot be written to", where=folder, fix="name another")


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is something to pour into rather than a file to replace: a pipe, a device, an open descriptor."""
    with suppress(OSError):
        mode = _mode_of(path)
        return mode is not None and (_descriptor(Path(path)) is not None or not stat.S_ISREG(mode))
    return False


def sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` last through a power cut."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    """A temporary sibling that takes the place of ``target``."""
    _remove_orphans(target)
    temporary = _temporary_beside(target)
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


@contextmanager
def _pouring(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A scratch file, because writers seek, whose content goes into the stream at ``path``."""
    with tempfile.TemporaryFile() as scratch:
        yield scratch
        scratch.seek(0)
        descriptor = _descriptor(Path(path))
        if descriptor == _STDOUT and sys.stdout:
            sys.stdout.flush()  # what was printed before stays before
        handle = os.open(path, os.O_WRONLY) if descriptor is None else os.dup(descriptor)
        with os.fdopen(handle, "wb") as stream:
            shutil.copyfileobj(scratch, stream)


def _descriptor(path: Path) -> int | None:
    """The open descriptor that a path names, as /dev/stdout does: opened anew, a file behind it would be overwritten."""
    while not (found := _DESCRIPTOR.fullmatch(str(path))) and path.is_symlink():
        path = path.parent / path.readlink()
    return int(found[1]) if found else None


def _mode_of(path: str | os.PathLike[str]) -> int | None:
    """Kind and permissions of what is at ``path``; None where nothing is."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return Path(path).stat().st_mode
    return None


def _temporary_beside(target: Path) -> Path:
    return target.with_name(f".{_stem(target)}.{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}")


def _stem(target: Path) -> str:
    return os.fsencode(target.name)[:_STEM_NBYTES].decode("utf-8", "ignore")


def _create(temporary: Path, mode: int | None) -> BinaryIO:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    handle = os.open(temporary, flags, _NEW_FILE_MODE if mode is None else 0o600)
    if os.name == "posix":
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if mode is not None:
            os.fchmod(handle, stat.S_IMODE(mode))
    return os.fdopen(handle, "w+b")


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """A lock on a folder, which shows others that its writer lives; where folders take none, nobody removes it."""
    if os.name != "posix":
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDWR)  # Windows flushes only what may be written
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_orphans(target: Path) -> None:
    """Remove what a killed writer of the same name left: temporaries that nobody holds a lock on."""
    if os.name != "posix":
        return
    for orphan in target.parent.glob(f".{_literal(_stem(target))}.*{_SUFFIX}"):
        with suppress(OSError):
            if _may_be_new(orphan):
                continue
            folder = orphan.is_dir()
            handle = os.open(orphan, os.O_RDONLY if folder else os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if folder:
                    shutil.rmtree(orphan)
                else:
                    orphan.unlink()
            finally:
                os.close(handle)


def _may_be_new(temporary: Path) -> bool:
    """Whether its writer may be about to lock it: it is young, and the process in its name lives."""
    if time.time() - temporary.stat().st_mtime >= _ORPHAN_AGE:
        return False
    process = re.search(r"\.(\d+)-[0-9a-f]+$", temporary.name.removesuffix(_SUFFIX))
    try:
        os.kill(int(process[1]) if process else os.getpid(), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _literal(name: str) -> str:
    """``name`` with the characters that glob gives a meaning made plain."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
