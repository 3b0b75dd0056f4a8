"""The fast road for short texts: a dictionary of pieces.

In: a text. Out: a list of ids. NumPy's start-up does not pay for a sentence; a piece seen before is one look-up.
"""

from typing import Final

from labkit.tokenizer.giants import merge_piece
from labkit.tokenizer.pairs import PairTable
from labkit.tokenizer.split import split_text

REMEMBERED: Final = 1 << 16  # pieces
LONGEST: Final = 64  # characters; longer pieces hardly come again


class ShortEncoder:
    """Encodes short texts; keeps the pieces it has seen, up to a limit."""

    def __init__(self, pairs: PairTable) -> None:
        self._pairs = pairs
        self._seen: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str) -> list[int]:
        """The ids of a text without surrogates."""
        out: list[int] = []
        seen = self._seen.get
        for piece in split_text(text):
            ids = seen(piece)
            out += ids if ids is not None else self._learn(piece)
        return out

    def _learn(self, piece: str) -> tuple[int, ...]:
        ids = tuple(merge_piece(piece.encode("utf-8"), self._pairs))
        if len(piece) <= LONGEST:
            if len(self._seen) >= REMEMBERED:
                self._seen.clear()
            self._seen[piece] = ids
        return ids
