"""What the tokenizer tells about its work: plain records, no behaviour."""

from dataclasses import dataclass
from typing import Literal

Alternative = Literal["contraction", "letters", "numbers", "others", "spaces", "space"]

WHY: dict[str, str] = {
    "contraction": "an apostrophe with s, t, m, d, ll, ve or re in lower case",
    "letters": "a run of letters, with one U+0020 before it if there is one",
    "numbers": "a run of numbers, with one U+0020 before it if there is one",
    "others": "a run that is neither letter, number nor white space, with one U+0020 before it if there is one",
    "spaces": "white space up to the end of the text, or all but the last of a run that text follows",
    "space": "the white space left over before text that did not take it",
}


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece (pre-token) of the split: merges never cross its ends.

    ``start`` and ``end`` count characters, ``byte_start`` and ``byte_end`` UTF-8 bytes; ends are exclusive.
    ``alternative`` is the part of the pattern that took it, ``why`` says that in words.
    """

    text: str
    data: bytes
    start: int
    end: int
    byte_start: int
    byte_end: int
    alternative: Alternative

    @property
    def why(self) -> str:
        return WHY[self.alternative]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair of neighbours that the vocabulary can merge; the lowest ``rank`` wins.

    ``places`` are the indices of the left symbols; ``line`` is the line in merges.txt, from 1, where one was read.
    """

    left: bytes
    right: bytes
    rank: int
    places: tuple[int, ...]
    line: int | None


@dataclass(frozen=True, slots=True)
class MergeStep:
    """One merge: the symbols before, every candidate (lowest rank first), the winner, where, the symbols after.

    ``places`` are indices into ``before`` of the left symbols merged in this step. ``token_id`` is the id of the
    merged symbol.
    """

    number: int
    before: tuple[bytes, ...]
    candidates: tuple[Candidate, ...]
    winner: Candidate
    places: tuple[int, ...]
    after: tuple[bytes, ...]
    token_id: int

    @property
    def merged(self) -> bytes:
        return self.winner.left + self.winner.right


@dataclass(frozen=True, slots=True)
class MergeNode:
    """A token as the tree of merges that made it; ``rank``, ``left`` and ``right`` are None for a single byte."""

    data: bytes
    token_id: int
    rank: int | None = None
    left: "MergeNode | None" = None
    right: "MergeNode | None" = None


@dataclass(frozen=True, slots=True)
class Token:
    """One id of an encoding, its bytes, and where they stand.

    ``byte_start`` and ``byte_end`` are exact. ``start`` and ``end`` count characters and take in every character that
    the token touches, so the tokens of a split character share its span. ``piece`` is the index of its piece, None
    for a special token.
    """

    id: int
    data: bytes
    start: int
    end: int
    byte_start: int
    byte_end: int
    piece: int | None
    tree: MergeNode


@dataclass(frozen=True, slots=True)
class Encoding:
    """A text with its pieces, its tokens and how each came about."""

    text: str
    pieces: tuple[Piece, ...]
    tokens: tuple[Token, ...]

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Character spans, one per id."""
        return [(token.start, token.end) for token in self.tokens]
