"""Where a checkpoint is: a path on this machine, or an address such as ``https://…``, ``s3://…``, ``hf://…``.

In: what the user gave. Out: a ``ByteSource`` for one file, or a ``Folder`` for a snapshot. The remote half is imported
only for an address.
"""

import os
import re
from pathlib import Path
from typing import Protocol

from labkit.errors import FormatError, MissingFileError
from labkit.outside import path_of, read_regular
from labkit.storage.sources import ByteSource, LocalFile

_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


class Folder(Protocol):
    """What a snapshot needs of the place it lies in."""

    @property
    def name(self) -> str:
        """What to call it in messages."""
        ...

    def child(self, name: str) -> str:
        """The path or address of a file in it."""
        ...

    def has(self, name: str) -> bool:
        """Whether there is such a file, or a link of that name."""
        ...

    def read_small(self, name: str, *, cap_nbytes: int) -> bytes:
        """The whole content of a small file; ``FormatError`` where it is over the cap."""
        ...

    def hint(self) -> str:
        """What to do where there is no checkpoint in it."""
        ...


def is_address(path: str | os.PathLike[str]) -> bool:
    """Whether it is an address rather than a path on this machine.

    >>> is_address("https://example.com/a"), is_address("C:/models"), is_address("models/a")
    (True, False, False)
    """
    return isinstance(path, str) and _ADDRESS.match(path) is not None


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether it is meant as one safetensors file rather than a snapshot folder; it need not be there.

    >>> is_file("https://example.com/a.safetensors"), is_file("https://example.com/a"), is_file("none.safetensors")
    (True, False, True)
    """
    if not is_address(path) and path_of(path).exists():
        return not Path(path).is_dir()
    return str(path).endswith(".safetensors")


def open_source(path: str | os.PathLike[str]) -> ByteSource:
    """The file at a path or an address, open for reading."""
    if is_address(path):
        from labkit.storage.remote import open_remote

        return open_remote(str(path))
    return LocalFile(path)


def open_folder(path: str | os.PathLike[str]) -> Folder:
    """The folder at a path or an address; raises ``MissingFileError`` where a path leads to none."""
    if is_address(path):
        from labkit.storage.remote import RemoteFolder

        return RemoteFolder(str(path))
    if not path_of(path).is_dir():
        raise MissingFileError("no such folder", where=path, fix="check the path")
    return LocalFolder(Path(path))


def too_large(name: str, nbytes: int, cap_nbytes: int) -> FormatError:
    """The error of a small file that is not small."""
    return FormatError(
        "index-json",
        "the index is over the cap",
        where=name,
        expected=f"at most {cap_nbytes} bytes",
        got=f"{nbytes} bytes",
    )


class LocalFolder:
    """A folder on this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The path as it was given."""
        return str(self.path)

    def child(self, name: str) -> str:
        """The path of a file in it."""
        return str(self.path / name)

    def has(self, name: str) -> bool:
        """Whether there is such a file, or a link of that name."""
        return os.path.lexists(self.path / name)

    def read_small(self, name: str, *, cap_nbytes: int) -> bytes:
        """The whole content of a small file; ``FormatError`` where it is over the cap."""
        path = self.path / name
        if path.is_file() and path.stat().st_size > cap_nbytes:
            raise too_large(str(path), path.stat().st_size, cap_nbytes)
        return read_regular(path, cap_nbytes=cap_nbytes)

    def hint(self) -> str:
        """What to do where there is no checkpoint in it."""
        pickles = sorted(path.name for path in self.path.glob("*.bin"))
        if pickles:
            return f"{pickles[0]} is a pickle, which can run code when loaded; convert it to safetensors first"
        others = sorted(path.name for path in self.path.glob("*.safetensors"))
        return f"give one of its files instead: {', '.join(others[:4])}" if others else "check the path"
