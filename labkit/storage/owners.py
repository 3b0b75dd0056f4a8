"""Any byte of a file -> what it is: a part of the prefix, a JSON token of the header, padding, or an element of a tensor.

In: a checked header and its text. Out: an ``Owner`` for an offset, and rows of bytes with their owners for a hex view. Both
entries and tensors are found by bisection, so a byte of a 500 MB file costs no more than one of a small file.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from labkit.storage.dtypes import DTYPES
from labkit.storage.header import PREFIX_NBYTES, Header
from labkit.storage.raw import METADATA

ROW_NBYTES = 16
"""Bytes in one row of a hex view."""
Kind = Literal["prefix", "key", "value", "punctuation", "padding", "element"]
_STRING_OR_BRACE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}]', re.DOTALL)
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+|[{}\[\]:,]|[a-z]+|\s+', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Owner:
    """What the bytes [begin, end) of the file are; ``tensor`` is the tensor they belong to or speak of."""

    kind: Kind
    begin: int
    end: int
    tensor: str | None
    meaning: str


@dataclass(frozen=True)
class HexRow:
    """Up to 16 bytes from ``offset`` on, and the owners that they belong to, in order."""

    offset: int
    octets: bytes
    owners: tuple[Owner, ...]


class Owners:
    """Who owns which byte of one file.

    >>> import tempfile; from pathlib import Path; from labkit.storage import read_header
    >>> path = Path(tempfile.mkdtemp()) / "one.safetensors"
    >>> text = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    >>> _ = path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    >>> owners = Owners(read_header(path), text)
    >>> owners.at(0).meaning, owners.at(9).meaning, owners.at(68).meaning
    ('the header length, 54', "the name of tensor 'a'", 'element [1] of F32 [2]')
    """

    def __init__(self, header: Header, text: bytes) -> None:
        self.header = header
        self._text = text
        self.names = header.names(order="offset")
        self._begins = [header.entries[name].begin for name in self.names]
        self._parts: list[
            int
        ] = []  # where each top-level key begins in the text; found when the header is first asked for
        self._tokens_of = lru_cache(maxsize=64)(self._read_tokens)

    def at(self, offset: int) -> Owner:
        """The owner of the byte at ``offset`` of the file; raises ``IndexError`` beyond its end."""
        if not 0 <= offset < self.header.file_nbytes:
            raise IndexError(f"byte {offset} of a file of {self.header.file_nbytes} bytes")
        if offset < PREFIX_NBYTES:
            return Owner("prefix", 0, PREFIX_NBYTES, None, f"the header length, {self.header.header_nbytes}")
        if offset < self.header.data_start:
            return self._token(offset)
        return self._element(offset)

    def rows(self, begin: int, octets: bytes) -> Iterator[HexRow]:
        """The bytes from ``begin`` on as rows of 16, each with its owners; ``begin`` is rounded down by the caller."""
        for start in range(0, len(octets), ROW_NBYTES):
            row = octets[start : start + ROW_NBYTES]
            yield HexRow(begin + start, row, tuple(self.between(begin + start, begin + start + len(row))))

    def between(self, begin: int, end: int) -> Iterator[Owner]:
        """The owners of the bytes [begin, end), in order."""
        while begin < end:
            owner = self.at(begin)
            yield owner
            begin = owner.end

    def place_of(self, tensor: str) -> int:
        """The tensor's number in the order of the bytes, so that neighbours can be told apart by it."""
        return bisect_right(self._begins, self.header.entries[tensor].begin)

    def _element(self, offset: int) -> Owner:
        place = offset - self.header.data_start
        last = bisect_right(self._begins, place) - 1  # an empty tensor comes before the one whose begin it shares
        entry = self.header.entries[self.names[last]]
        bits = DTYPES[entry.dtype].bits
        first = (place - entry.begin) * 8 // bits
        if bits % 8:
            final = ((place - entry.begin) * 8 + 7) // bits
            begin, end = offset, offset + 1
            index = " and ".join(str(index_of(number, entry.shape)) for number in range(first, final + 1))
            return Owner("element", begin, end, entry.name, f"elements {index} of {entry.dtype} {list(entry.shape)}")
        begin = self.header.data_start + entry.begin + first * bits // 8
        index = str(index_of(first, entry.shape))
        meaning = f"element {index} of {entry.dtype} {list(entry.shape)}"
        return Owner("element", begin, begin + bits // 8, entry.name, meaning)

    def _token(self, offset: int) -> Owner:
        if not self._parts:
            self._parts = [0, *_top_level_keys(self._text)]
        tokens = self._tokens_of(bisect_right(self._parts, offset - PREFIX_NBYTES) - 1)
        return tokens[bisect_right(tokens, offset, key=lambda token: token.begin) - 1]

    def _read_tokens(self, part: int) -> list[Owner]:
        """The tokens from one top-level key to the next, so that a header of 100,000 entries costs no more than one."""
        end = self._parts[part + 1] if part + 1 < len(self._parts) else len(self._text)
        levels = [_Level(is_object=True)] if part else []
        return list(_owned_tokens(self._text, self._parts[part], end, levels))


def index_of(number: int, shape: tuple[int, ...]) -> list[int]:
    """The coordinates of the flat element ``number`` in C order.

    >>> index_of(5, (2, 3))
    [1, 2]
    """
    coordinates = []
    for size in reversed(shape):
        number, coordinate = divmod(number, size)
        coordinates.append(coordinate)
    return coordinates[::-1]


@dataclass
class _Level:
    """An open bracket of the header: an object and its current key, or a list and the number of its current item."""

    is_object: bool
    key: str = ""
    awaits_key: bool = True
    item: int = 0


def _top_level_keys(text: bytes) -> Iterator[int]:
    """Where the names of a sound header begin: at depth 1 every string is one, because every value there is an object."""
    depth = 0
    for match in _STRING_OR_BRACE.finditer(text):
        if match[0] == b"{":
            depth += 1
        elif match[0] == b"}":
            depth -= 1
        elif depth == 1:
            yield match.start()


def _owned_tokens(text: bytes, start: int, stop: int, levels: list[_Level]) -> Iterator[Owner]:
    """The tokens of [start, stop) of a sound header, with the tensor and field they belong to."""
    end_of_json = len(text.rstrip(b" \t\r\n"))
    for match in _TOKEN.finditer(text, start, stop):
        token, begin, end = match[0], PREFIX_NBYTES + match.start(), PREFIX_NBYTES + match.end()
        if token.isspace():
            meaning = "padding, so that the data is aligned" if match.start() >= end_of_json else "white space"
            yield Owner("padding", begin, end, None, meaning)
        elif token in b"{}[]:,":
            yield Owner("punctuation", begin, end, _tensor_of(levels), "JSON")
            _follow(token, levels)
        elif levels[-1].is_object and levels[-1].awaits_key:
            levels[-1].key = json.loads(token)
            yield Owner("key", begin, end, _tensor_of(levels), _key_meaning([level.key for level in levels]))
        else:
            keys = [level.key for level in levels if level.is_object]
            yield Owner("value", begin, end, _tensor_of(levels), _value_meaning(keys, levels[-1].item))


def _follow(token: bytes, levels: list[_Level]) -> None:
    """Keep the open brackets up with a punctuation token."""
    if token in b"{[":
        levels.append(_Level(is_object=token == b"{"))
    elif token in b"}]":
        levels.pop()
    elif token == b":":
        levels[-1].awaits_key = False
    elif levels[-1].is_object:
        levels[-1].awaits_key = True
    else:
        levels[-1].item += 1


def _tensor_of(levels: list[_Level]) -> str | None:
    """The tensor whose entry is open; None between entries and in the metadata."""
    inside = levels and (len(levels) > 1 or not levels[0].awaits_key or levels[0].key)
    return levels[0].key if inside and levels[0].key != METADATA else None


def _key_meaning(keys: list[str]) -> str:
    if keys[0] == METADATA:
        return f"the key {keys[1]!r} of the metadata" if len(keys) > 1 else "the name of the metadata"
    return f"the field {keys[1]} of tensor {keys[0]!r}" if len(keys) > 1 else f"the name of tensor {keys[0]!r}"


def _value_meaning(keys: list[str], item: int) -> str:
    if keys[0] == METADATA:
        return f"the value of {keys[1]!r} in the metadata"
    if keys[1] == "dtype":
        return f"the dtype of tensor {keys[0]!r}"
    if keys[1] == "shape":
        return f"dimension {item} of tensor {keys[0]!r}"
    return f"the {'end' if item else 'begin'} offset of tensor {keys[0]!r}"
