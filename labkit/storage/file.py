"""An open safetensors file: a mapping from name to torch tensor, read when it is asked for.

In: a path. Out: tensors that are views of the file's pages (``mapped``) or their own memory (``copy``), with the byte
offsets of everything. Both modes refuse exactly the same files, because both begin with the same checked header.
"""

import mmap
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from math import gcd, prod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import torch

from labkit.errors import ArgumentError, ArgumentTypeError, FileAccessError, OutOfRangeError
from labkit.outside import shown
from labkit.storage.dtypes import DTYPES
from labkit.storage.header import Entry, Header, Order, header_of
from labkit.storage.memory import memory
from labkit.storage.places import open_source
from labkit.storage.sources import ByteSource, LocalFile
from labkit.storage.widening import Widened, torch_dtype, widen_bytes
from labkit.words import counted

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Mode = Literal["mapped", "copy"]
CHUNK_NBYTES = 1 << 22
"""Bytes that the streaming verbs hold of a tensor at a time."""
WHOLE_NBYTES = 24
"""A number of bytes that every dtype fills with whole elements: a multiple of 8 (F64) and of 3 (F6)."""


class StorageWarning(UserWarning):
    """A file keeps every rule, and yet its values may not be what its reader thinks."""


def open_safetensors(path: str | os.PathLike[str], *, mode: Mode = "mapped") -> "SafetensorsFile":
    """Open the file at ``path`` (or at an address) and check its header; tensors are read when they are asked for.

    ``mapped``: tensors are views of private pages of the file; writing to one never reaches the file. ``copy``: each
    tensor is read into its own memory, so that a file truncated underneath gives an error instead of a signal. A file
    at an address (``https://``, ``s3://``, ``hf://`` …) is always copied, one range request a tensor.

    >>> import labkit.storage, tempfile; path = Path(tempfile.mkdtemp()) / "two.safetensors"
    >>> labkit.storage.save_safetensors({"a": torch.arange(3), "b": torch.ones(2, 2)}, path)
    >>> with open_safetensors(path) as file:
    ...     file["a"], file.header.span("a"), file.names(order="name")
    (tensor([0, 1, 2]), (120, 144), ['a', 'b'])

    Raises ``MissingFileError``, ``FileAccessError`` and, for a broken rule, ``FormatError`` with its ``code``.
    """
    if mode not in ("mapped", "copy"):
        raise ArgumentError("no such mode", where=path, expected="'mapped' or 'copy'", got=repr(mode))
    source = open_source(path)
    try:
        return SafetensorsFile(source, mode=mode)
    except BaseException:
        source.close()
        raise


def load_safetensors(
    path: str | os.PathLike[str],
    *,
    names: Iterable[str] | None = None,
    device: "str | torch.device" = "cpu",
    mode: Mode = "mapped",
) -> "dict[str, Tensor]":
    """The tensors of a file, or those in ``names``, as a dict on ``device``."""
    with open_safetensors(path, mode=mode) as file:
        chosen = file.names() if names is None else list(names)
        return {name: file[name].to(device) for name in chosen}


class SafetensorsFile(Mapping[str, "Tensor"]):
    """Name -> tensor, in the order of the bytes; a context manager. Tensors outlive it."""

    def __init__(self, source: ByteSource, *, mode: Mode) -> None:
        if sys.byteorder != "little":
            raise FileAccessError("this machine is big-endian, the format little-endian", where=source.name)
        self.header: Header = header_of(source)
        self.notes: tuple[str, ...] = ()
        self._source: ByteSource | None = source
        self._names = self.header.names()
        self._map: mmap.mmap | None = None
        if mode == "mapped" and isinstance(source, LocalFile):
            try:
                self._map = _map_privately(source)
            except (OSError, ValueError) as error:
                self.notes = (f"the system refused to map the file ({error}), so tensors are copied",)
        elif mode == "mapped":
            self.notes = ("a remote file cannot be mapped, so each tensor is fetched when it is asked for",)
        self.mode: Mode = "copy" if self._map is None else "mapped"

    @property
    def path(self) -> Path:
        """The path as it was given."""
        return self.header.path

    @property
    def metadata(self) -> Mapping[str, str]:
        """``__metadata__``, empty where there is none."""
        return self.header.metadata

    def __getitem__(self, name: str) -> "Tensor":
        entry = self.header.entry(name)
        return self._tensor(entry)

    def __contains__(self, name: object) -> bool:
        return name in self.header.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        state = "closed" if self._source is None else self.mode
        return f"SafetensorsFile({self.header.name!r}, {counted(len(self), 'tensor')}, {state})"

    def names(self, *, order: Order = "offset") -> list[str]:
        """Every tensor's name, in the order of the bytes, of the names, or of the header's text."""
        return self.header.names(order=order)

    def slice(self, name: str, first: int, count: int) -> "Tensor":
        """``count`` elements from flat index ``first`` on, as one row; only their bytes are read."""
        entry = self.header.entry(name)
        part = Entry(name, entry.dtype, (count,), *self._range(entry, first, count))
        return self._tensor(part)

    def rows(self, name: str, start: int, stop: int) -> "Tensor":
        """Rows ``start`` to ``stop`` (not included) of the first axis; only their bytes are read."""
        entry = self.header.entry(name)
        first, count = row_range(entry, start, stop, self.header.name)
        part = Entry(name, entry.dtype, (stop - start, *entry.shape[1:]), *self._range(entry, first, count))
        return self._tensor(part)

    def bytes(self, name: str) -> bytes:
        """The tensor's bytes as they stand in the file."""
        entry = self.header.entry(name)
        return self._raw(entry.begin, entry.nbytes).numpy().tobytes()

    def chunks(
        self, name: str, *, first: int = 0, count: int | None = None, max_nbytes: int = CHUNK_NBYTES
    ) -> Iterator["Tensor"]:
        """The bytes of ``count`` elements from ``first`` on (all, unless given), in order, as uint8 tensors.

        Each holds whole elements and at most ``max_nbytes`` bytes (but 24 or more).
        """
        entry = self.header.entry(name)
        begin, end = self._range(entry, first, entry.numel - first if count is None else count)
        step = max(max_nbytes, WHOLE_NBYTES) // WHOLE_NBYTES * WHOLE_NBYTES
        for start in range(begin, end, step):
            yield self._raw(start, min(step, end - start))

    def float32(self, name: str) -> Widened:
        """The tensor widened to float32, packed dtypes included, with how many elements had to be rounded."""
        entry = self.header.entry(name)
        try:
            return widen_bytes(self._raw(entry.begin, entry.nbytes), entry.dtype, entry.shape)
        except ArgumentTypeError as error:
            raise ArgumentTypeError(
                error.what, where=f"{self.header.name}, tensor {shown(name)}", got=entry.dtype, fix=error.fix
            ) from None

    def numpy(self, name: str) -> "np.ndarray[Any, Any]":
        """The tensor as NumPy has it; dtypes that NumPy lacks need ml_dtypes, which holds packed ones one to a byte."""
        from labkit.storage.arrays import numpy_array

        entry = self.header.entry(name)
        where = f"{self.header.name}, tensor {shown(name)}"
        return numpy_array(self._raw(entry.begin, entry.nbytes).numpy(), entry, where)

    def close(self) -> None:
        """Close the file. Tensors already taken keep their pages; no other can be taken."""
        if self._source is not None:
            self._source.close()
        self._source = None
        self._map = None

    def __enter__(self) -> "SafetensorsFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _range(self, entry: Entry, first: int, count: int) -> tuple[int, int]:
        """[begin, end) in the data section of ``count`` elements; packed ones must start and end on whole bytes."""
        where = f"{self.header.name}, tensor {shown(entry.name)}"
        if first < 0 or count < 0 or first + count > entry.numel:
            raise OutOfRangeError(
                "the slice leaves the tensor",
                where=where,
                expected=f"0 <= first, first + count <= {entry.numel}",
                got=f"first {first}, count {count}",
            )
        bits = DTYPES[entry.dtype].bits
        begin, end = first * bits, (first + count) * bits
        if begin % 8 or end % 8:
            raise ArgumentError(
                "the slice does not start and end on whole bytes",
                where=where,
                got=f"elements [{first}, {first + count}) of {bits} bits",
                fix=f"use multiples of {8 // gcd(bits, 8)} elements",
            )
        return entry.begin + begin // 8, entry.begin + end // 8

    def _tensor(self, entry: Entry) -> "Tensor":
        shape = torch_shape(entry, self.header.name)
        dtype = torch_dtype(entry.dtype)
        if entry.nbytes == 0:
            self._open_source()
            return torch.empty(shape, dtype=dtype)
        raw = self._raw(entry.begin, entry.nbytes)  # [nbytes]
        if entry.dtype == "BOOL":
            raw = _sound_bools(raw, f"{self.header.name}, tensor {shown(entry.name)}")
        return raw.view(dtype).reshape(shape)

    def _raw(self, begin: int, nbytes: int) -> "Tensor":
        """Bytes [begin, begin + nbytes) of the data section as a uint8 tensor."""
        source = self._open_source()
        start = self.header.data_start + begin
        if nbytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        if self._map is not None:
            return torch.frombuffer(self._map, dtype=torch.uint8, count=nbytes, offset=start)
        raw = memory(nbytes)
        source.read_into(start, raw.numpy().data)
        return raw

    def _open_source(self) -> ByteSource:
        if self._source is None:
            raise FileAccessError("the reader is closed", where=self.header.name, fix="open it again")
        if isinstance(self._source, LocalFile):
            self._source.require_unchanged()
        return self._source


def torch_shape(entry: Entry, where: str) -> tuple[int, ...]:
    """The shape as torch has it: two F4 share one element, and torch has no 6-bit type at all."""
    if not DTYPES[entry.dtype].packed:
        return entry.shape
    where = f"{where}, tensor {shown(entry.name)}"
    fix = "take .float32(name) for its values, or .bytes(name)"
    if DTYPES[entry.dtype].torch is None:
        raise ArgumentTypeError("torch has no such type", where=where, got=entry.dtype, fix=fix)
    if not entry.shape or entry.shape[-1] % 2:
        got = f"shape {list(entry.shape)}"
        raise ArgumentTypeError("torch holds F4 in pairs along the last axis", where=where, got=got, fix=fix)
    return (*entry.shape[:-1], entry.shape[-1] // 2)


def row_range(entry: Entry, start: int, stop: int, where: str) -> tuple[int, int]:
    """The first element of rows ``start`` to ``stop`` of the first axis, and how many there are."""
    where = f"{where}, tensor {shown(entry.name)}"
    if not entry.shape:
        raise ArgumentError("a scalar has no rows", where=where)
    if not 0 <= start <= stop <= entry.shape[0]:
        expected = f"0 <= start <= stop <= {entry.shape[0]}"
        raise OutOfRangeError("the rows leave the tensor", where=where, expected=expected, got=f"{start}:{stop}")
    width = prod(entry.shape[1:])
    return start * width, (stop - start) * width


def _sound_bools(raw: "Tensor", where: str) -> "Tensor":
    """The bytes of a BOOL tensor, with anything but 0 and 1 reported and read as true."""
    odd = raw > 1  # [numel]
    count = int(odd.sum())
    if count == 0:
        return raw
    first = int(odd.nonzero()[0])
    warnings.warn(
        f"{where}: {count} BOOL bytes are neither 0 nor 1 (first: {int(raw[first])} at element {first}); read as true",
        StorageWarning,
        stacklevel=4,
    )
    return (raw != 0).view(torch.uint8)


def _map_privately(source: LocalFile) -> mmap.mmap:
    """The whole file as copy-on-write pages."""
    return mmap.mmap(source.handle, source.nbytes, access=mmap.ACCESS_COPY)
