"""One giant piece cut into overlapping windows that are merged side by side and then stitched together.

In: the bytes of a piece. Out: its ids, or None where two windows share no token.

Why stitching is exact: a sequence of tokens is what merging by rank gives exactly if every two neighbours are (take
the first merge across a border: the two tokens around it, merged alone, would have met it too). Where two windows
hold the same token at the same place, every two neighbours of the stitched sequence stand side by side in one of
the two windows.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from labkit.tokenizer.pairs import PairTable
from labkit.tokenizer.rounds import MAXIMUM_WIDTH, merge_grid

STRIDE: Final = MAXIMUM_WIDTH // 2


def merge_by_windows(piece: bytes, pairs: PairTable) -> list[int] | None:
    """The ids of a piece of at least one window, without NUL; None where two windows share no token.

    >>> from labkit.tokenizer import Tokenizer
    >>> tokenizer = Tokenizer.gpt2()
    >>> merge_by_windows(b"abcd" * 50, PairTable(tokenizer.vocabulary)) == tokenizer.encode_piece(b"abcd" * 50)
    True
    """
    count = -(-(len(piece) - STRIDE) // STRIDE)  # windows
    padded = np.frombuffer(piece.ljust((count + 1) * STRIDE, b"\0"), np.uint8)  # [byte]
    rows = np.lib.stride_tricks.sliding_window_view(padded, MAXIMUM_WIDTH)[::STRIDE]  # [window, place]
    grid = merge_grid(rows, pairs)  # [window, place]: ids, -1 where no token starts
    cuts = _common_tokens(grid)  # [window - 1]
    if cuts is None:
        return None
    first = np.concatenate([[0], cuts])[:, None]  # [window, 1]: from where on a window is used
    last = np.concatenate([cuts + STRIDE, [MAXIMUM_WIDTH]])[:, None]  # [window, 1]: up to where
    places = np.arange(MAXIMUM_WIDTH)  # [place]
    ids: list[int] = grid[(grid >= 0) & (places >= first) & (places < last)].tolist()
    return ids


def _common_tokens(grid: npt.NDArray[np.int32]) -> npt.NDArray[np.int64] | None:
    """For each window but the first, the first place where it and the one before have the same token."""
    lengths = _token_lengths(grid)  # [window, place]
    earlier, later = lengths[:-1, STRIDE:], lengths[1:, :STRIDE]  # [window - 1, place]
    common = (earlier > 0) & (earlier == later)  # [window - 1, place]
    cuts: npt.NDArray[np.int64] = common.argmax(axis=1)  # [window - 1]
    if not common[np.arange(len(cuts)), cuts].all():
        return None
    return cuts


def _token_lengths(grid: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """The bytes of the token at each place, 0 where none starts."""
    windows, width = grid.shape
    starts = np.flatnonzero(grid >= 0)  # [token]
    window_ends = (starts // width + 1) * width  # [token]
    lengths = np.zeros(windows * width, np.int64)  # [window * place]
    lengths[starts] = np.minimum(np.append(starts[1:], grid.size), window_ends) - starts
    return lengths.reshape(windows, width)
