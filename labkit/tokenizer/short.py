"""The fast road for short texts: a dictionary of pieces.

In: a text. Out: a list of ids. NumPy's start-up does not pay for a sentence; a piece seen before is one look-up.
"""

from itertools import chain
from typing import Final

from labkit.tokenizer.giants import merge_piece
from labkit.tokenizer.pairs import PairTable
from labkit.tokenizer.split import split_text

REMEMBERED: Final = 1 << 16  # pieces
LONGEST: Final = 64  # characters; longer pieces hardly come again


class PieceMemory(dict[str, tuple[int, ...]]):
    """Pieces and their ids; one that is missing is merged, and remembered up to a limit."""

    def __init__(self, pairs: PairTable) -> None:
        super().__init__()
        self._pairs = pairs

    def __missing__(self, piece: str) -> tuple[int, ...]:
        ids = tuple(merge_piece(piece.encode("utf-8"), self._pairs))
        if len(piece) <= LONGEST:
            if len(self) >= REMEMBERED:
                self.clear()
            self[piece] = ids
        return ids


class ShortEncoder:
    """Encodes short texts; keeps the pieces it has seen, up to a limit."""

    def __init__(self, pairs: PairTable) -> None:
        self._ids_of = PieceMemory(pairs).__getitem__

    def encode(self, text: str) -> list[int]:
        """The ids of a text without surrogates."""
        return list(chain.from_iterable(map(self._ids_of, split_text(text))))
