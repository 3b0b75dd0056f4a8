r"""Text to pieces: GPT-2's pattern, over stand-ins.

In: a text. Out: pieces that together are the text. Source: encoder.py of GPT-2,
``'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+``.
Every character is first replaced by an ASCII one of its class (classes.py), so that the pattern needs no Unicode.
"""

import re
from typing import cast

from labkit.tokenizer.classes import stand_in
from labkit.tokenizer.records import Alternative, Piece

# [\t-\r\x20] is ASCII's white space as Unicode counts it: U+001C to U+001F are not in it.
PATTERN = re.compile(
    r"""
    (?P<contraction> ' (?: [sdmt] | ll | ve | re ) )
  | (?P<letters>     \x20? [A-Za-z]++ )
  | (?P<numbers>     \x20? [0-9]++ )
  | (?P<others>      \x20? [^\t-\r\x20A-Za-z0-9]++ )
  | (?P<spaces>      [\t-\r\x20]+ (?! [^\t-\r\x20] ) )
  | (?P<space>       [\t-\r\x20] )
    """,
    re.VERBOSE,
)
# The same without names, so that findall gives strings.
_FIND_ALL = re.compile(re.sub(r"\?P<\w+>", "?:", PATTERN.pattern), re.VERBOSE).findall


def split_text(text: str) -> list[str]:
    """The pieces as plain strings; the text must hold no surrogates.

    >>> split_text("don't we'll"), split_text("a  b"), split_text(" \\n x")
    (['don', "'t", ' we', "'ll"], ['a', ' ', ' b'], [' \\n', ' x'])
    """
    if text.isascii():
        return cast("list[str]", _FIND_ALL(text))
    pieces, start = [], 0
    for part in _FIND_ALL(stand_in(text)):
        end = start + len(part)
        pieces.append(text[start:end])
        start = end
    return pieces


def split(text: str) -> tuple[Piece, ...]:
    """The pieces with their places, and which alternative of the pattern took each.

    >>> [(piece.text, piece.alternative) for piece in split("it's  5")]
    [('it', 'letters'), ("'s", 'contraction'), (' ', 'spaces'), (' 5', 'numbers')]
    """
    pieces, byte_start = [], 0
    for match in PATTERN.finditer(stand_in(text)):
        start, end = match.span()
        data = text[start:end].encode("utf-8")
        taken = cast(Alternative, match.lastgroup)
        pieces.append(Piece(text[start:end], data, start, end, byte_start, byte_start + len(data), taken))
        byte_start += len(data)
    return tuple(pieces)
