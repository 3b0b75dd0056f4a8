"""What the fast road's tables hold from the start: the tokens that their own bytes encode to.

In: a vocabulary. Out: keys and values. In a vocabulary that was trained nearly every token is such; one that is not
must never be looked up by its bytes, since merging them gives something else.
"""

import numpy as np
import numpy.typing as npt

from labkit.tokenizer.pairs import PairTable
from labkit.tokenizer.rounds import merge_rows
from labkit.tokenizer.table import LONGEST, WORD, Words, byte_windows, high_words, low_words, pack


class Seeds:
    """Ids that stand in the store from its first place on, and the keys under which tables find them.

    ``short`` are keys and values of tokens of at most 8 bytes, ``middle`` of those of at most 16.
    """

    def __init__(self, pairs: PairTable) -> None:
        spelled = pairs.vocabulary.spelled
        windows = byte_windows(spelled.data)
        tokens = fitting_tokens(pairs)  # [token]
        begins, lengths = spelled.begins[tokens], spelled.lengths[tokens]  # [token]
        low, high = low_words(windows, begins, lengths), high_words(windows, begins, lengths)  # [token]
        if not pairs.vocabulary.released:
            kept = _encode_to_themselves(tokens, low, high, pairs)  # [token]
            tokens, lengths, low, high = tokens[kept], lengths[kept], low[kept], high[kept]
        self.ids = tokens
        values = pack(np.ones_like(tokens), np.arange(len(tokens)))  # [token]
        short = lengths <= WORD  # [token]
        self.short = ((low[short],), values[short])
        self.middle = ((low[~short], high[~short]), values[~short])


def fitting_tokens(pairs: PairTable) -> npt.NDArray[np.int64]:
    """The ids of tokens of 1 to 16 bytes, none of them NUL, that are not added tokens."""
    spelled = pairs.vocabulary.spelled
    fits = (spelled.lengths > 0) & (spelled.lengths <= LONGEST)  # [id]
    fits[[token.id for token in pairs.vocabulary.added]] = False
    nul = np.flatnonzero(np.frombuffer(spelled.data, np.uint8) == 0)  # [place]
    fits[np.searchsorted(spelled.begins, nul, "right") - 1] = False
    return np.flatnonzero(fits)


def _encode_to_themselves(
    tokens: npt.NDArray[np.int64], low: Words, high: Words, pairs: PairTable
) -> npt.NDArray[np.bool_]:
    rows = np.stack([low, high], axis=1).view(np.uint8)  # [token, byte]
    merged, counts = merge_rows(rows, pairs)
    first = merged[np.cumsum(counts) - counts]  # [token]
    same: npt.NDArray[np.bool_] = (counts == 1) & (first == tokens)  # [token]
    return same
