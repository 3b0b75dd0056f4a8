"""Jane Austen's six novels out of the Debian package ``r-cran-janeaustenr`` -> chapters, and what is held out of them."""

from __future__ import annotations

import lzma
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEBIAN_CORPUS = Path("/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb")
HEADING = re.compile(r"(chapter|volume|jane austen|by jane austen)\b.*|by|persuasion|finis", re.IGNORECASE)
NOTE = "a note on the text"


@dataclass(frozen=True)
class Novel:
    """One novel: its title and its chapters, each a list of paragraphs without line breaks."""

    title: str
    chapters: list[list[str]]


@dataclass(frozen=True)
class Split:
    """Training documents and held-out documents (one text a chapter, one paragraph a line)."""

    train: list[str]
    held_out: list[str]


def unpack_blobs(data: bytes) -> Iterator[bytes]:
    """Yield the decompressed objects of an R ``.rdb`` file.

    Each blob is the decompressed length (4 bytes, big endian) followed by a zlib stream, or by ``Z`` and raw LZMA2.
    """
    position = 0
    while position < len(data):
        (length,) = struct.unpack_from(">I", data, position)
        body = data[position + 4 :]
        if body[:1] == b"Z":
            xz = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6}])
            blob, rest = xz.decompress(body[1:]), xz.unused_data
        else:
            inflate = zlib.decompressobj()
            blob, rest = inflate.decompress(body), inflate.unused_data
        if len(blob) != length:
            raise ValueError(f"blob at byte {position}: {len(blob)} bytes where {length} were announced")
        yield blob
        position = len(data) - len(rest)


def read_string_vector(blob: bytes) -> list[str]:
    """Decode a serialised R character vector (XDR format, version 2 or 3)."""
    if blob[:2] != b"X\n":
        raise ValueError("not an R object in XDR format")
    (version,) = struct.unpack_from(">i", blob, 2)
    position = 14
    if version >= 3:
        (size,) = struct.unpack_from(">i", blob, position)
        position += 4 + size
    kind, count = struct.unpack_from(">ii", blob, position)
    if kind & 0xFF != 16:
        raise ValueError("not an R character vector")
    position += 8
    strings = []
    for _ in range(count):
        _, size = struct.unpack_from(">ii", blob, position)
        position += 8
        strings.append(blob[position : position + size].decode("utf-8"))
        position += size
    return strings


def join_paragraphs(lines: list[str]) -> Iterator[str]:
    """Join hard-wrapped lines into paragraphs; drop the underscores and equals signs that mark emphasis."""
    for paragraph in "\n".join(line.strip() for line in lines).split("\n\n"):
        text = re.sub(r"[_=*]", "", " ".join(paragraph.split()))
        if text:
            yield re.sub(r" {2,}", " ", text).strip()


def read_corpus(path: Path) -> list[Novel]:
    """Read the novels; headings and a modern closing note are dropped, a chapter heading starts a new chapter."""
    novels = []
    for blob in unpack_blobs(path.read_bytes()):
        lines = read_string_vector(blob)
        chapters: list[list[str]] = [[]]
        for paragraph in join_paragraphs(lines):
            if paragraph.lower().startswith(NOTE):
                break
            is_heading = len(paragraph) < 60 and (HEADING.fullmatch(paragraph) or paragraph == paragraph.upper())
            if not is_heading:
                chapters[-1].append(paragraph)
            elif paragraph.lower().startswith("chapter") and chapters[-1]:
                chapters.append([])
        novels.append(Novel(lines[0].strip().title(), [chapter for chapter in chapters if chapter]))
    return novels


def split_corpus(novels: list[Novel], fraction: float) -> Split:
    """Hold out the paragraphs at the end of each novel that make up ``fraction`` of its characters."""
    split = Split([], [])
    for novel in novels:
        total = sum(len(paragraph) for chapter in novel.chapters for paragraph in chapter)
        seen = 0
        for chapter in novel.chapters:
            kept: list[str] = []
            held: list[str] = []
            for paragraph in chapter:
                seen += len(paragraph)
                (kept if seen <= total * (1 - fraction) else held).append(paragraph)
            if kept:
                split.train.append("\n".join(kept))
            if held:
                split.held_out.append("\n".join(held))
    return split
