"""Many short pieces merged side by side: in each round every piece does one merge.

In: a matrix of bytes, one piece a row, padded with NUL. Out: their ids. Each piece is a linked list over its byte
places; a place's key is the rank of the pair that starts there, with the place in the low bits, so that the smallest
key of a piece is its next merge: lowest rank, then leftmost.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from labkit.tokenizer.pairs import NO_RANK, PairTable
from labkit.tokenizer.scan import scan

PLACE_BITS: Final = 6
MAXIMUM_WIDTH: Final = 1 << PLACE_BITS
FEW: Final = 40  # rows; so few are finished one at a time sooner than a round for all of them is set up
DONE: Final = NO_RANK << PLACE_BITS  # the key of a place where no merge starts

Ids = npt.NDArray[np.int32]


def merge_rows(rows: npt.NDArray[np.uint8], pairs: PairTable) -> tuple[Ids, npt.NDArray[np.int64]]:
    """The ids of every row, joined, and how many each row has; rows hold no NUL but the padding behind them.

    >>> from labkit.tokenizer import Tokenizer
    >>> rows = np.frombuffer(b" world\\0\\0 the\\0\\0\\0\\0", np.uint8).reshape(2, 8)
    >>> ids, counts = merge_rows(rows, PairTable(Tokenizer.gpt2().vocabulary))
    >>> ids.tolist(), counts.tolist()
    ([995, 262], [1, 1])
    """
    grid = merge_grid(rows, pairs)  # [row, place]
    kept = grid >= 0  # [row, place]
    return grid[kept], kept.sum(axis=1)


def merge_grid(rows: npt.NDArray[np.uint8], pairs: PairTable) -> Ids:
    """As ``merge_rows``, each id at the place of its first byte and -1 where no token starts."""
    count, width = rows.shape
    assert width <= MAXIMUM_WIDTH, "a row's places must fit in the key"
    columns = np.ascontiguousarray(rows.T)  # [place, row]
    out = np.full((count, width), -1, np.int32)  # [row, place]; -1 where no token starts
    ids = pairs.byte_ids[columns]  # [place, row]
    ids[columns == 0] = -1
    keys = _first_keys(columns, pairs)  # [place, row]
    after = np.repeat(np.arange(1, width + 1, dtype=np.int32)[:, None], count, axis=1)  # [place, row]
    before = after - 2  # [place, row]
    names = np.arange(count)  # [row]: which row of ``out`` a column is
    while True:
        best = keys.min(axis=0)  # [row]
        live = np.flatnonzero(best < DONE)  # [live]
        if live.size < names.size // 2:  # leave the finished rows behind
            done = np.flatnonzero(best >= DONE)
            out[names[done]] = ids[:, done].T
            names, best = names[live], best[live]
            ids, keys, after, before = (np.ascontiguousarray(m[:, live]) for m in (ids, keys, after, before))
            live = np.arange(names.size)
        if live.size <= FEW:
            for row in live.tolist():
                _finish(ids[:, row], pairs)
            out[names] = ids.T
            break
        _merge_once(live, best[live], ids, keys, after, before, pairs)
    return out


def _first_keys(columns: npt.NDArray[np.uint8], pairs: PairTable) -> Ids:
    width = len(columns)
    keys = np.full(columns.shape, DONE, np.int32)  # [place, row]
    pair = columns[:-1].astype(np.int32) << 8 | columns[1:]  # [place - 1, row]
    keys[:-1] = pairs.byte_ranks[pair] << PLACE_BITS
    keys[:-1][columns[1:] == 0] = DONE
    keys[keys >= DONE] = DONE
    places = np.arange(width, dtype=np.int32)[:, None]
    keys[keys < DONE] += np.broadcast_to(places, keys.shape)[keys < DONE]
    return keys


def _merge_once(
    live: npt.NDArray[np.int64], best: Ids, ids: Ids, keys: Ids, after: Ids, before: Ids, pairs: PairTable
) -> None:
    """One merge in each live row, in place."""
    width, rows = ids.shape
    flat_ids, flat_keys, flat_after, flat_before = (m.reshape(-1) for m in (ids, keys, after, before))
    place = best & (MAXIMUM_WIDTH - 1)  # [live]
    at = place * rows + live  # [live]
    swallowed = flat_after[at] * rows + live  # [live]
    merged = pairs.made[best >> PLACE_BITS]  # [live]
    flat_ids[at] = merged
    flat_ids[swallowed] = -1
    flat_keys[swallowed] = DONE
    right = flat_after[swallowed]  # [live]
    flat_after[at] = right
    inside = np.flatnonzero(right < width)  # [inside]
    beside = right[inside] * rows + live[inside]  # [inside]
    flat_before[beside] = place[inside]
    new = np.full(live.size, DONE, np.int32)  # [live]
    new[inside] = _keys_of(merged[inside], flat_ids[beside], place[inside], pairs)
    flat_keys[at] = new
    left = flat_before[at]  # [live]
    inside = np.flatnonzero(left >= 0)  # [inside]
    beside = left[inside] * rows + live[inside]  # [inside]
    flat_keys[beside] = _keys_of(flat_ids[beside], merged[inside], left[inside], pairs)


def _keys_of(left: Ids, right: Ids, place: Ids, pairs: PairTable) -> Ids:
    """The key of each pair at its place; a neighbour of -1 is padding and merges with nothing."""
    ranks = pairs.ranks(np.maximum(left, 0), np.maximum(right, 0))  # [pair]
    keys = (ranks << PLACE_BITS) + place  # [pair]
    keys[(ranks == NO_RANK) | (left < 0) | (right < 0)] = DONE
    return keys


def _finish(column: Ids, pairs: PairTable) -> None:
    """Merge one row to its end, in place."""
    places = np.flatnonzero(column >= 0).tolist()
    done = scan([int(column[place]) for place in places], pairs, places)
    column[:] = -1
    column[places] = done
