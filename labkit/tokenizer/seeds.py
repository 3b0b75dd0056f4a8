"""Which tokens are what their own bytes encode to: those may stand in the fast road's tables from the start.

In: a vocabulary. Out: ids. In a vocabulary that was trained nearly every token is; one that is not must never be
looked up by its bytes, since merging them gives something else.
"""

import numpy as np
import numpy.typing as npt

from labkit.tokenizer.pairs import PairTable
from labkit.tokenizer.rounds import merge_rows
from labkit.tokenizer.table import LONGEST


def self_encoding(pairs: PairTable) -> npt.NDArray[np.int64]:
    """The ids of tokens of at most 16 bytes, none of them NUL, whose bytes merge to the token itself."""
    vocabulary = pairs.vocabulary
    added = {token.id for token in vocabulary.added}
    tokens = [
        (token, data)
        for token, data in enumerate(vocabulary.tokens)
        if data and len(data) <= LONGEST and 0 not in data and token not in added
    ]
    ids = np.array([token for token, _ in tokens], np.int64)  # [token]
    if vocabulary.released or not tokens:
        return ids
    joined = b"".join(data.ljust(LONGEST, b"\0") for _, data in tokens)
    merged, counts = merge_rows(np.frombuffer(joined, np.uint8).reshape(-1, LONGEST), pairs)
    first = merged[np.cumsum(counts) - counts]  # [token]
    chosen: npt.NDArray[np.int64] = ids[(counts == 1) & (first == ids)]
    return chosen
