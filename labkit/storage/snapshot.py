"""A snapshot folder -> one mapping from name to tensor, whether it is one file or an index and its shards.

In: a folder that holds model.safetensors, or model.safetensors.index.json and shards. Out: a ``Snapshot``. Links, as
the hub cache has them, are followed; file names from an index never leave the folder.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from labkit.errors import UnknownNameError
from labkit.storage.file import Mode, SafetensorsFile, open_safetensors
from labkit.storage.header import Entry, Header
from labkit.storage.index import SINGLE_NAME, check_framework, check_shards
from labkit.storage.places import is_file, open_folder
from labkit.storage.shards import Prefer, choose_index, for_each_shard
from labkit.words import counted

if TYPE_CHECKING:
    from torch import Tensor


def open_snapshot(folder: str | os.PathLike[str], *, mode: Mode = "mapped", prefer: Prefer | None = None) -> "Snapshot":
    """Open a snapshot folder (or one safetensors file) and check index and shards against each other, both ways.

    Where model.safetensors stands beside an index that does not name it, the folder is refused unless ``prefer`` says
    which to read.

    >>> import labkit.storage, tempfile, torch; folder = Path(tempfile.mkdtemp())
    >>> labkit.storage.save_safetensors({"a": torch.arange(3)}, folder / "model.safetensors")
    >>> with open_snapshot(folder) as snapshot:
    ...     snapshot["a"], snapshot.entries["a"][1].nbytes, snapshot.notes
    (tensor([0, 1, 2]), 24, ())

    Raises ``MissingFileError`` where there is no checkpoint, else as ``open_safetensors``.
    """
    if is_file(folder):
        return Snapshot({Path(folder).name: open_safetensors(folder, mode=mode)}, folder=Path(folder).parent)
    place = open_folder(folder)
    index = choose_index(place, prefer=prefer)
    if index is None:
        return Snapshot({SINGLE_NAME: open_safetensors(place.child(SINGLE_NAME), mode=mode)}, folder=Path(folder))
    with ExitStack() as opened:

        def open_shard(path: str) -> SafetensorsFile:
            return opened.enter_context(open_safetensors(path, mode=mode))

        files = for_each_shard(place, index, open_shard)
        check_shards(index, {shard: file.header for shard, file in files.items()})
        opened.pop_all()
    return Snapshot(files, folder=Path(folder), notes=index.notes)


class Snapshot(Mapping[str, "Tensor"]):
    """Name -> tensor over every file of a snapshot; a context manager. Tensors outlive it."""

    def __init__(self, files: Mapping[str, SafetensorsFile], *, folder: Path, notes: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.files: Mapping[str, SafetensorsFile] = files
        self.headers: Mapping[Path, Header] = {file.path: file.header for file in files.values()}
        self.entries: Mapping[str, tuple[Path, Entry]] = {
            name: (file.path, file.header.entries[name]) for file in files.values() for name in file
        }
        self.notes = notes + tuple(f"{file.header.name}: {note}" for file in files.values() for note in file.notes)
        self._holders = {name: file for file in files.values() for name in file}
        for header in self.headers.values():
            check_framework(header)

    def __getitem__(self, name: str) -> "Tensor":
        return self.file_of(name)[name]

    def __contains__(self, name: object) -> bool:
        return name in self._holders

    def __iter__(self) -> Iterator[str]:
        return iter(self._holders)

    def __len__(self) -> int:
        return len(self._holders)

    def __repr__(self) -> str:
        return f"Snapshot({str(self.folder)!r}, {counted(len(self), 'tensor')} in {counted(len(self.files), 'file')})"

    def file_of(self, name: str) -> SafetensorsFile:
        """The open file that holds the tensor; raises ``UnknownNameError`` with the near names."""
        try:
            return self._holders[name]
        except KeyError:
            raise UnknownNameError.near("tensor", name, self._holders, where=self.folder) from None

    @property
    def nbytes(self) -> int:
        """Bytes that all tensors take together."""
        return sum(header.data_nbytes for header in self.headers.values())

    def close(self) -> None:
        """Close every file. Tensors already taken keep their pages; no other can be taken."""
        for file in self.files.values():
            file.close()

    def __enter__(self) -> "Snapshot":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
