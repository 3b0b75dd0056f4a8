"""A file or snapshot -> every defect it has, and everything that is allowed and yet worth knowing.

In: a path. Out: a ``Check`` whose ``return_code`` is 1 where a rule is broken. Unlike the reader, which stops at the
first, this goes on as far as the file makes sense. The values of BOOL tensors are looked at, no others.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import FormatError
from labkit.outside import shown
from labkit.storage.dtypes import DTYPES
from labkit.storage.exact import read_exactly
from labkit.storage.header import PREFIX_NBYTES, Header, header_of, read_text
from labkit.storage.index import SINGLE_NAME, framework_defects, index_defects
from labkit.storage.places import LocalFolder
from labkit.storage.shards import choose_index, shard_missing
from labkit.storage.sources import ByteSource, LocalFile, read_bytes
from labkit.words import counted

_CHUNK_NBYTES = 1 << 20
_ZIP_TAIL_NBYTES = 65_557  # a ZIP's end record lies within this many bytes of the end
_ZIP_END = b"PK\x05\x06"


@dataclass(frozen=True)
class Caution:
    """Something that the format allows and that a reader, a viewer or a GPU may stumble over."""

    code: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} [{self.code}]"


@dataclass(frozen=True)
class Check:
    """What was found in the files that were looked at."""

    paths: tuple[Path, ...]
    defects: tuple[FormatError, ...]
    cautions: tuple[Caution, ...]

    @property
    def return_code(self) -> int:
        """0 where every rule is kept, else 1."""
        return 1 if self.defects else 0

    def __str__(self) -> str:
        files, defects = counted(len(self.paths), "file"), counted(len(self.defects), "defect")
        return f"{files}, {defects}, {counted(len(self.cautions), 'caution')}"


def check_path(path: str | os.PathLike[str]) -> Check:
    """Every defect and caution of a safetensors file, or of a snapshot folder's index and files.

    Raises ``MissingFileError`` and ``FileAccessError`` where there is nothing to check.
    """
    place = Path(path)
    return _check_snapshot(place) if place.is_dir() else _check_file(place)[0]


def _check_snapshot(folder: Path) -> Check:
    try:
        index = choose_index(LocalFolder(folder))
    except FormatError as error:
        return Check((), (error,), ())
    if index is None:
        check, header = _check_file(folder / SINGLE_NAME)
        foreign = framework_defects(header) if header else ()
        return Check(check.paths, (*check.defects, *foreign), check.cautions)
    checks: list[Check] = []
    headers: dict[str, Header] = {}
    defects: list[FormatError] = []
    for shard in index.shards:
        try:
            with shard_missing(str(folder / shard), shard, index):
                check, header = _check_file(folder / shard)
        except FormatError as error:
            defects.append(error)
            continue
        checks.append(check)
        if header is not None:
            headers[shard] = header
    if len(headers) == len(index.shards):
        defects.extend(index_defects(index, headers))
    return Check(
        tuple(path for check in checks for path in check.paths),
        (*defects, *(defect for check in checks for defect in check.defects)),
        tuple(caution for check in checks for caution in check.cautions),
    )


def _check_file(path: Path) -> tuple[Check, Header | None]:
    source = LocalFile(path)
    try:
        try:
            text = read_text(source)
        except FormatError as error:
            return Check((path,), (error,), ()), None
        reading = read_exactly(text, source.nbytes - PREFIX_NBYTES - len(text), str(path))
        if reading.defects:
            return Check((path,), tuple(_with_disguise(reading.defects, source)), ()), None
        header = header_of(source)
        return Check((path,), (), tuple(_cautions(header, text, source))), header
    finally:
        source.close()


def _with_disguise(defects: list[FormatError], source: ByteSource) -> Iterator[FormatError]:
    """The defects, the first of them as the reader tells it: another kind of file is called what it is."""
    try:
        header_of(source)
    except FormatError as error:
        yield error
    yield from defects[1:]


def _cautions(header: Header, text: bytes, source: ByteSource) -> Iterator[Caution]:
    where = str(header.path)
    if header.data_start % 8 and header.data_nbytes:
        yield Caution("data-unaligned", where, f"data starts at byte {header.data_start}, not a multiple of 8")
    if text.rstrip(b" ") != text.rstrip():
        yield Caution("padding-not-spaces", where, "the header is padded with other white space than spaces")
    for key, value in header.metadata.items():
        yield from _text_cautions(f"{where}, __metadata__ key {shown(key)}", key + value, "metadata")
        if not key:
            yield Caution("metadata-key-empty", where, "a metadata key is empty")
    for name in header.names():
        entry = header.entries[name]
        place = f"{where}, tensor {shown(name)}"
        yield from _name_cautions(place, name)
        bits = DTYPES[entry.dtype].bits
        if bits > 8 and entry.nbytes and entry.begin % (bits // 8) and not header.data_start % 8:
            yield Caution("tensor-unaligned", place, f"starts at {entry.begin}, not a multiple of {bits // 8} bytes")
        if entry.dtype == "F4" and (not entry.shape or entry.shape[-1] % 2):
            yield Caution("f4-unpaired", place, f"torch cannot hold F4 {list(entry.shape)}: an odd last dimension")
        if entry.dtype == "BOOL":
            yield from _bool_cautions(place, source, *header.span(name))
    tail = min(_ZIP_TAIL_NBYTES, source.nbytes)
    if _ZIP_END in read_bytes(source, source.nbytes - tail, tail):
        yield Caution("also-zip", where, "the file's end is also a ZIP archive's: other tools may open it as one")


def _name_cautions(place: str, name: str) -> Iterator[Caution]:
    yield from _text_cautions(place, name, "name")
    if not name.strip():
        yield Caution("name-blank", place, "the name is blank")
    elif name != name.strip():
        yield Caution("name-padded", place, "the name begins or ends with white space")
    if name.startswith("/") or ".." in name.split("/"):
        yield Caution("name-path", place, "the name looks like a path; it must never become one")


def _text_cautions(place: str, text: str, kind: str) -> Iterator[Caution]:
    if not text.isprintable():
        yield Caution(f"{kind}-unprintable", place, "it holds control or other unprintable characters")
    elif "<" in text and ">" in text:
        yield Caution(f"{kind}-markup", place, "it holds markup; a page must escape it")


def _bool_cautions(place: str, source: ByteSource, begin: int, end: int) -> Iterator[Caution]:
    odd = 0
    for start in range(begin, end, _CHUNK_NBYTES):
        chunk = read_bytes(source, start, min(_CHUNK_NBYTES, end - start))
        odd += len(chunk) - chunk.count(0) - chunk.count(1)
    if odd:
        yield Caution("bool-bytes", place, f"{odd} BOOL bytes are neither 0 nor 1; readers take them for true")
