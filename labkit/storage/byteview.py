"""An open file as bytes that explain themselves: rows for a hex view, and what one byte means. torch is not needed.

In: a path or an address. Out: ``HexRow`` and ``Meaning`` records. Only the bytes that are asked for are read.
"""

import os
from dataclasses import dataclass
from types import TracebackType

from labkit.errors import OutOfRangeError
from labkit.storage.dtypes import DTYPES
from labkit.storage.header import PREFIX_NBYTES, Header, header_of
from labkit.storage.owners import ROW_NBYTES, HexRow, Owner, Owners
from labkit.storage.places import open_source
from labkit.storage.sources import read_bytes
from labkit.storage.widening_by_hand import BitFields, bit_fields


@dataclass(frozen=True)
class Meaning:
    """One byte: its value, its owner, and the bit fields of the element that it is a part of."""

    offset: int
    octet: int
    owner: Owner
    fields: BitFields | None

    def __str__(self) -> str:
        text = f"byte {self.offset:,} is 0x{self.octet:02x}: {self.owner.meaning}"
        if self.owner.kind != "element":
            return text
        text += f" of tensor {self.owner.tensor!r}"
        if self.fields is None:
            return text
        parts = " ".join(f"{name} {bits}" for name, bits in self.fields.fields)
        return f"{text} = {self.fields.value} ({parts}: {self.fields.formula})"


class ByteView:
    """A file's bytes with their owners; a context manager.

    >>> import tempfile; from pathlib import Path; path = Path(tempfile.mkdtemp()) / "one.safetensors"
    >>> text = b'{"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}'
    >>> _ = path.write_bytes(len(text).to_bytes(8, "little") + text + bytes.fromhex("003c00c0"))
    >>> with ByteView(path) as view:
    ...     print(view.meaning(64))
    byte 64 is 0x00: element [1] of F16 [2] of tensor 'a' = -2.0 (sign 1 exponent 10000 mantissa 0000000000: - 2^(16 - 15) * 1.0)

    Raises as ``read_header``; ``OutOfRangeError`` for bytes beyond the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._source = open_source(path)
        try:
            self.header: Header = header_of(self._source)
            text = read_bytes(self._source, PREFIX_NBYTES, self.header.header_nbytes)
        except BaseException:
            self._source.close()
            raise
        self.owners = Owners(self.header, text)

    def rows(self, begin: int, nbytes: int) -> list[HexRow]:
        """The rows that hold the bytes [begin, begin + nbytes), cut at the end of the file."""
        self._require(begin)
        start = begin // ROW_NBYTES * ROW_NBYTES
        end = min(begin + nbytes, self.header.file_nbytes)
        return list(self.owners.rows(start, read_bytes(self._source, start, max(end - start, 0))))

    def meaning(self, offset: int) -> Meaning:
        """What the byte at ``offset`` is a part of."""
        self._require(offset)
        owner = self.owners.at(offset)
        octet = read_bytes(self._source, offset, 1)[0]
        fields = None
        if owner.kind == "element":
            dtype = self.header.entries[owner.tensor or ""].dtype
            if not DTYPES[dtype].packed:
                raw = read_bytes(self._source, owner.begin, owner.end - owner.begin)
                fields = bit_fields(dtype, int.from_bytes(raw, "little"))
        return Meaning(offset, octet, owner, fields)

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def __enter__(self) -> "ByteView":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require(self, offset: int) -> None:
        if not 0 <= offset < self.header.file_nbytes:
            raise OutOfRangeError(
                "the byte lies beyond the file",
                where=self.header.name,
                expected=f"0 to {self.header.file_nbytes - 1}",
                got=str(offset),
            )
