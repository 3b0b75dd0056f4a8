"""The fast road for short texts: a dictionary of words.

In: a text. Out: a list of ids. NumPy's start-up does not pay for a sentence. A word, with the white space before it,
is made of whole pieces whatever stands around it, so that a word seen before is one look-up.
"""

import re
from collections.abc import Callable
from itertools import chain
from typing import Final

from labkit.tokenizer import unicode16
from labkit.tokenizer.classes import parse_ranges
from labkit.tokenizer.giants import merge_piece
from labkit.tokenizer.pairs import PairTable
from labkit.tokenizer.split import split_text

REMEMBERED: Final = 1 << 14  # words, and as many pieces
LONGEST: Final = 64  # characters; longer ones hardly come again

_SPACES = "".join(f"\\u{low:04x}-\\u{high:04x}" for low, high in parse_ranges(unicode16.SPACES))
find_words = re.compile(f"[{_SPACES}]*+[^{_SPACES}]++|[{_SPACES}]+").findall

Ids = tuple[int, ...]


class Memory(dict[str, Ids]):
    """Strings and their ids; what is missing is worked out, and remembered up to a limit."""

    def __init__(self, work_out: Callable[[str], Ids]) -> None:
        super().__init__()
        self._work_out = work_out

    def __missing__(self, text: str) -> Ids:
        ids = self._work_out(text)
        if len(text) <= LONGEST:
            if len(self) >= REMEMBERED:
                self.clear()
            self[text] = ids
        return ids


class ShortEncoder:
    """Encodes short texts; keeps the words and pieces it has seen, up to a limit."""

    def __init__(self, pairs: PairTable) -> None:
        self._pairs = pairs
        self._piece_ids = Memory(self._merge).__getitem__
        self._word_ids = Memory(self._encode_word).__getitem__

    def encode(self, text: str) -> list[int]:
        """The ids of a text without surrogates."""
        return list(chain.from_iterable(map(self._word_ids, find_words(text))))

    def _encode_word(self, word: str) -> Ids:
        return tuple(chain.from_iterable(map(self._piece_ids, split_text(word))))

    def _merge(self, piece: str) -> Ids:
        return tuple(merge_piece(piece.encode("utf-8"), self._pairs))
