"""A text file of any size to a file of ids, in bounded memory.

In: a UTF-8 file. Out: a .npy file, or a safetensors file with one tensor ``ids``. The file is read and written block
by block; the result appears under its name only when it is whole.
"""

import json
import os
import struct
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from labkit.atomic import replacing
from labkit.errors import ArgumentError, FileAccessError, LabkitError, MissingFileError, TextError
from labkit.outside import require_regular
from labkit.tokenizer.blocks import last_cut
from labkit.tokenizer.specials import space_before
from labkit.tokenizer.vocabulary import AddedToken

CHUNK: Final = 1 << 20  # bytes read at once
HEADER: Final = 128  # bytes set aside for the header, whose count is known at the end only
NPY_MAGIC: Final = b"\x93NUMPY\x01\x00"
TENSOR: Final = "ids"

Encode = Callable[[str], npt.NDArray[np.unsignedinteger]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class EncodedFile:
    """What was written: where, how many tokens of which dtype, from how many bytes."""

    path: Path
    tokens: int
    dtype: str
    source_bytes: int


def encode_file(
    source: Path,
    target: Path,
    *,
    encode: Encode,
    dtype: np.dtype[Any],
    added: Sequence[AddedToken] = (),
    progress: Progress | None = None,
) -> EncodedFile:
    """Encode a file; ``added`` are tokens that no cut may fall into, ``progress`` gets bytes done and bytes in all.

    Raises MissingFileError, FileAccessError, TextError with the byte where the source is not UTF-8, ArgumentError
    for a target that ends in neither .npy nor .safetensors.
    """
    header = {".npy": npy_header, ".safetensors": safetensors_header}.get(target.suffix)
    if header is None:
        raise ArgumentError("the target's kind is unknown", where=target, expected=".npy or .safetensors")
    require_regular(source)
    try:
        with source.open("rb") as reader:
            total = os.fstat(reader.fileno()).st_size
            with replacing(target) as writer:
                writer.write(bytes(HEADER))
                tokens = _pump(reader, writer, source, encode, dtype, added, total, progress)
                writer.seek(0)
                writer.write(header(tokens, dtype))
    except LabkitError:
        raise
    except FileNotFoundError as error:
        raise MissingFileError("there is no such file or folder", where=error.filename) from None
    except OSError as error:
        raise FileAccessError(f"cannot be read or written ({error.strerror})", where=error.filename or source) from None
    return EncodedFile(target, tokens, dtype.name, total)


def _pump(
    reader: IO[bytes],
    writer: IO[bytes],
    source: Path,
    encode: Encode,
    dtype: np.dtype[Any],
    added: Sequence[AddedToken],
    total: int,
    progress: Progress | None,
) -> int:
    tokens = done = 0
    for text, size in read_blocks(reader, source, added):
        ids = encode(text)  # [token]
        writer.write(np.ascontiguousarray(ids, dtype.newbyteorder("<")).data)
        tokens += len(ids)
        done += size
        if progress is not None:
            progress(done, total)
    return tokens


def read_blocks(reader: IO[bytes], source: Path, added: Sequence[AddedToken] = ()) -> Iterator[tuple[str, int]]:
    """The text of a file in blocks cut where it is safe, and the bytes each was read from."""
    decoder = getincrementaldecoder("utf-8")("strict")
    longest = _longest(added)
    held, read, searched = "", 0, 0
    while True:
        chunk = reader.read(CHUNK)
        try:
            held += decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            # the decoder may have held back up to three bytes of the chunk before
            at = read + len(chunk) - len(error.object) + error.start
            raise TextError("is not UTF-8", where=f"{source}, byte {at}", got=hex(error.object[error.start])) from None
        read += len(chunk)
        if not chunk:
            break
        cut = safe_cut(held, added, start=searched)
        if cut:
            yield held[:cut], len(held[:cut].encode("utf-8"))
            held = held[cut:]
        searched = 0 if cut else max(0, len(held) - longest - 1)
    if held:
        yield held, len(held.encode("utf-8"))


def safe_cut(text: str, added: Sequence[AddedToken], *, start: int = 0) -> int:
    """The last place after ``start`` where the text may be cut although more follows; 0 where there is none.

    The last characters are left: what follows may make them part of an added token.
    """
    end = len(text) - _longest(added)
    cut = last_cut(text, start, end) if end > start + 1 else None
    while cut:
        around = [
            place
            for token in added
            if (place := text.find(token.content, max(0, cut - len(token.content)), cut + len(token.content))) >= 0
            if place < cut <= place + len(token.content)
        ]
        if not around:
            return cut
        cut = space_before(text, min(around), 0)  # white space may belong to the token behind it
    return 0


def _longest(added: Sequence[AddedToken]) -> int:
    return max((len(token.content) for token in added), default=0)


def npy_header(count: int, dtype: np.dtype[Any]) -> bytes:
    """The header of a one-dimensional .npy file, always 128 bytes."""
    fields = f"{{'descr': '<u{dtype.itemsize}', 'fortran_order': False, 'shape': ({count},), }}"
    start = len(NPY_MAGIC) + 2
    return NPY_MAGIC + struct.pack("<H", HEADER - start) + fields.ljust(HEADER - start - 1).encode("ascii") + b"\n"


def safetensors_header(count: int, dtype: np.dtype[Any]) -> bytes:
    """The header of a safetensors file with the one tensor ``ids``, always 128 bytes."""
    entry = {"dtype": f"U{8 * dtype.itemsize}", "shape": [count], "data_offsets": [0, count * dtype.itemsize]}
    text = json.dumps({TENSOR: entry}, separators=(",", ":")).encode("ascii")
    return struct.pack("<Q", HEADER - 8) + text.ljust(HEADER - 8)
