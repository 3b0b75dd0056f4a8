"""The line of the checkpoint: tensor names as labkit gives them -> file, bytes, dtype and shape in the folder."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from labkit.storage import open_snapshot


@dataclass(frozen=True, kw_only=True)
class TensorPlace:
    """Where one tensor lies: bytes [begin, end) of a file."""

    name: str
    """As it is stored, wrappers such as ``transformer.`` included."""
    file: str
    begin: int
    end: int
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {list(self.shape)}: {self.file}, bytes {self.begin:,} to {self.end:,}"


def tensor_places(folder: str | Path, names: Iterable[str]) -> dict[str, TensorPlace]:
    """Each of ``names`` that the folder stores, itself or under a wrapper, with its place.

    >>> from labkit.load import embedded
    >>> place = tensor_places(embedded(), ["wpe.weight"])["wpe.weight"]
    >>> place.shape, place.end - place.begin == 4 * 256 * 192
    ((256, 192), True)
    """
    wanted, found = list(dict.fromkeys(names)), {}
    with open_snapshot(folder) as snapshot:
        for stored, (file, entry) in snapshot.entries.items():
            name = next((each for each in wanted if stored == each or stored.endswith(f".{each}")), None)
            if name is None:
                continue
            begin, end = snapshot.headers[file].span(stored)
            found[name] = TensorPlace(
                name=stored, file=file.name, begin=begin, end=end, dtype=entry.dtype, shape=tuple(entry.shape)
            )
    return found
