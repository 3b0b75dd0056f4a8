"""The header of a safetensors file: from its bytes to one checked record, without torch.

In: a path. Out: a ``Header``: where the data starts, the metadata, and an ``Entry`` for every tensor. Two roads, one
verdict: the fast one decodes with msgspec and accepts only a header that encodes back to its own bytes (so it holds no
duplicate, no odd number and no unknown field); anything else takes the exact road, which alone refuses.
Source: the format text of safetensors.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from labkit.errors import FormatError, UnknownNameError
from labkit.storage.disguises import HEAD_NBYTES, recognise
from labkit.storage.dtypes import BITS
from labkit.storage.exact import read_exactly
from labkit.storage.places import open_source
from labkit.storage.raw import METADATA, RawEntry
from labkit.storage.rules import HEADER_CAP_NBYTES, MAX_NUMEL
from labkit.storage.sources import ByteSource, read_bytes

PREFIX_NBYTES = 8
"""Bytes of the header length in front of the header."""
Order = Literal["offset", "name", "file"]

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_METADATA_FIRST = re.compile(
    rb'\{"__metadata__":(\{(?:' + _STRING + rb":" + _STRING + rb',?)*+\})(?:,(?=")|(?=\}))', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor's place: [begin, end) counts bytes from the start of the data section.

    >>> Entry("wte.weight", "F32", (50257, 768), 0, 154389504).numel
    38597376
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes it takes in the file."""
        return self.end - self.begin

    @property
    def numel(self) -> int:
        """Elements it has."""
        return prod(self.shape)


class Entries(Mapping[str, Entry]):
    """Name -> ``Entry``, in the header's order; each record is made when it is asked for."""

    def __init__(self, raw: Mapping[str, "_FastEntry | RawEntry"]) -> None:
        self._raw = raw

    def __getitem__(self, name: str) -> Entry:
        raw = self._raw[name]
        return Entry(name, raw.dtype, raw.shape, *raw.data_offsets)

    def __contains__(self, name: object) -> bool:
        return name in self._raw

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def by_offset(self) -> list[str]:
        """The names in the order of their bytes."""
        return [name for name, raw in sorted(self._raw.items(), key=lambda item: item[1].data_offsets)]


@dataclass(frozen=True)
class Header:
    """What the first bytes of a safetensors file say, checked against the whole file's size.

    ``header_nbytes`` is the length in the prefix; data starts at byte ``data_start`` = 8 + ``header_nbytes``. ``name`` is
    the path or address as it was given, for messages; ``padding_nbytes`` counts the white space at the header's end.
    """

    path: Path
    name: str
    header_nbytes: int
    data_start: int
    file_nbytes: int
    metadata: Mapping[str, str]
    entries: Entries
    padding_nbytes: int

    @property
    def data_nbytes(self) -> int:
        """Size of the data section."""
        return self.file_nbytes - self.data_start

    def entry(self, name: str) -> Entry:
        """The entry of that name; raises ``UnknownNameError`` with the near names."""
        try:
            return self.entries[name]
        except KeyError:
            raise UnknownNameError.near("tensor", name, self.entries, where=self.name) from None

    def span(self, name: str) -> tuple[int, int]:
        """The tensor's [begin, end) as bytes of the file."""
        entry = self.entry(name)
        return self.data_start + entry.begin, self.data_start + entry.end

    def names(self, *, order: Order = "offset") -> list[str]:
        """Every tensor's name, in the order of the bytes, of the names, or of the header's text."""
        if order == "offset":
            return self.entries.by_offset()
        return sorted(self.entries) if order == "name" else list(self.entries)


_Size = Annotated[int, msgspec.Meta(ge=0)]


class _FastEntry(msgspec.Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    dtype: str
    shape: tuple[_Size, ...]
    data_offsets: tuple[_Size, _Size]


_decode_entries = msgspec.json.Decoder(dict[str, _FastEntry]).decode
_decode_metadata = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read and check the header of the file at ``path`` (or at an address); no tensor is touched, torch not imported.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "one.safetensors"
    >>> text = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    >>> _ = path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    >>> header = read_header(path); header.entries["a"]
    Entry(name='a', dtype='F32', shape=(2,), begin=0, end=8)
    >>> header.span("a")
    (62, 70)

    Raises ``MissingFileError``, ``FileAccessError`` and, for a broken rule, ``FormatError`` with its ``code``.
    """
    source = open_source(path)
    try:
        return header_of(source)
    finally:
        source.close()


def header_of(source: ByteSource) -> Header:
    """The checked header of an open file, local or remote."""
    text = read_text(source)
    data_start = PREFIX_NBYTES + len(text)
    data_nbytes = source.nbytes - data_start
    parsed = _read_fast(text, data_nbytes)
    if parsed is None:
        reading = read_exactly(text, data_nbytes, source.name)
        if reading.defects:
            raise _first_or_disguise(reading.defects[0], source)
        parsed = reading.metadata, Entries(reading.entries)
    padding_nbytes = len(text) - len(text.rstrip(b" \t\r\n"))
    return Header(Path(source.name), source.name, len(text), data_start, source.nbytes, *parsed, padding_nbytes)


def read_text(source: ByteSource) -> bytes:
    """The header's bytes, read only after its length was held against the file's size and the cap."""
    if source.nbytes < PREFIX_NBYTES:
        short = FormatError(
            "prefix-short",
            "the file is too short",
            where=source.name,
            expected=f"at least {PREFIX_NBYTES} bytes",
            got=f"{source.nbytes} bytes",
            fix="the download or the save did not finish" if source.nbytes == 0 else None,
        )
        raise _first_or_disguise(short, source)
    length = int.from_bytes(read_bytes(source, 0, PREFIX_NBYTES), "little")
    remaining = source.nbytes - PREFIX_NBYTES
    if length == 0:
        raise FormatError(
            "header-empty", "the header length is 0", where=source.name, expected="at least 2 bytes, '{}'"
        )
    if length > HEADER_CAP_NBYTES:
        raise _first_or_disguise(
            FormatError(
                "header-cap",
                "the header length is over the cap",
                where=source.name,
                expected=f"at most {HEADER_CAP_NBYTES} bytes",
                got=f"{length} bytes",
                fix="this is no safetensors file, or its first 8 bytes are damaged",
            ),
            source,
        )
    if length > remaining:
        raise _first_or_disguise(
            FormatError(
                "header-length",
                "the header is longer than the rest of the file",
                where=source.name,
                expected=f"at most {remaining} bytes",
                got=f"{length} bytes",
                fix="the file is truncated; fetch it again",
            ),
            source,
        )
    return read_bytes(source, PREFIX_NBYTES, length)


def _first_or_disguise(defect: FormatError, source: ByteSource) -> FormatError:
    """``defect``, or what the file really is where its first bytes show that."""
    if defect.code not in ("prefix-short", "header-cap", "header-length", "header-first-byte"):
        return defect
    disguise = recognise(read_bytes(source, 0, min(HEAD_NBYTES, source.nbytes)))
    if disguise is None:
        return defect
    return FormatError(disguise.code, disguise.what, where=source.name, got=f"{source.nbytes} bytes", fix=disguise.fix)


def _read_fast(text: bytes, data_nbytes: int) -> tuple[dict[str, str], Entries] | None:
    """Metadata and entries where every rule is plainly kept; None in any doubt."""
    body = text.rstrip(b" ")
    metadata: dict[str, str] = {}
    try:
        first = _METADATA_FIRST.match(body) if body.startswith(b'{"__metadata__":{') else None
        if first:
            metadata = _decode_metadata(first[1])
            if _encode(metadata) != first[1]:
                return None
            body = b"{" + body[first.end() :]
        entries = _decode_entries(body)
        if METADATA in entries or _encode(entries) != body or not _is_sound(entries, data_nbytes):
            return None
    except (msgspec.MsgspecError, RecursionError, OverflowError, KeyError):
        return None
    return metadata, Entries(entries)


def _is_sound(entries: Mapping[str, _FastEntry], data_nbytes: int) -> bool:
    """Whether sizes fit dtypes and shapes, and the ranges cover the data section without hole or overlap."""
    position = 0
    in_order = True
    for entry in entries.values():
        begin, end = entry.data_offsets
        numel = 1
        for size in entry.shape:
            numel *= size
        if numel * BITS[entry.dtype] != (end - begin) * 8 or (numel == 0 and not _fits(entry.shape)):
            return False
        in_order = in_order and begin == position
        position = end
    if not in_order:
        position = 0
        for begin, end in sorted(entry.data_offsets for entry in entries.values()):
            if begin != position:
                return False
            position = end
    return position == data_nbytes


def _fits(shape: tuple[int, ...]) -> bool:
    return prod(size or 1 for size in shape) <= MAX_NUMEL
