"""One piece at a time, of any length: the fast forms of merge.py's algorithm.

In: the bytes of a piece. Out: its ids. Short pieces scan a list of ranks; long ones keep a heap of candidates over a
linked list of symbols. Giants are merged by windows (windows.py); where those do not fit together, as in a run of one
letter, all places of the lowest pair are merged at once while that pays, and the heap does the rest.
"""

from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np
import numpy.typing as npt

from labkit.tokenizer.pairs import NO_RANK, PairTable
from labkit.tokenizer.scan import scan
from labkit.tokenizer.vocabulary import ID_BITS
from labkit.tokenizer.windows import merge_by_windows

SCAN_LIMIT: Final = 100  # bytes; beyond it a heap is faster than scanning a list
GIANT: Final = 3000  # bytes; from here on whole arrays are worth their start-up
PAYING_SHARE: Final = 150  # merging everywhere at once pays while a pair has more places than symbols over this
PLACE_SHIFT: Final = 40  # a heap entry is rank << 40 | place

Array = npt.NDArray[np.int32]


def merge_piece(piece: bytes, pairs: PairTable) -> list[int]:
    """The ids of one piece.

    >>> from labkit.tokenizer import Tokenizer
    >>> merge_piece(b" world", PairTable(Tokenizer.gpt2().vocabulary))
    [995]
    """
    byte_ids = pairs.vocabulary.byte_ids
    if len(piece) <= SCAN_LIMIT:
        return scan([byte_ids[byte] for byte in piece], pairs)
    if len(piece) >= GIANT and 0 not in piece and (found := merge_by_windows(piece, pairs)) is not None:
        return found
    ids = pairs.byte_ids[np.frombuffer(piece, np.uint8)]  # [symbol]
    ranks = pairs.ranks(ids[:-1], ids[1:])  # [symbol - 1]
    if len(piece) >= GIANT and pairs.ordered:
        ids, ranks = merge_everywhere(ids, ranks, pairs)
    return merge_by_heap(ids.tolist(), ranks.tolist(), pairs)


def merge_by_heap(ids: list[int], ranks: list[int], pairs: PairTable) -> list[int]:
    """Keep candidates in a heap and symbols in a linked list: n log n.

    ``ranks[i]`` is the rank of the pair at i and i + 1. An entry whose rank is no longer the place's own is stale.
    """
    rank_of, made = pairs.vocabulary.rank_of.get, pairs.vocabulary.made
    count = len(ids)
    ranks.append(NO_RANK)
    after = list(range(1, count + 1))
    before = list(range(-1, count - 1))
    heap = [rank << PLACE_SHIFT | place for place, rank in enumerate(ranks) if rank != NO_RANK]
    heapify(heap)
    mask = (1 << PLACE_SHIFT) - 1
    while heap:
        entry = heappop(heap)
        place, rank = entry & mask, entry >> PLACE_SHIFT
        if ranks[place] != rank:
            continue
        token = ids[place] = made[rank]
        swallowed = after[place]
        ids[swallowed] = -1
        ranks[swallowed] = NO_RANK
        right = after[place] = after[swallowed]
        ranks[place] = NO_RANK
        if right < count:
            before[right] = place
            new = ranks[place] = rank_of(token << ID_BITS | ids[right], NO_RANK)
            if new != NO_RANK:
                heappush(heap, new << PLACE_SHIFT | place)
        left = before[place]
        if left >= 0:
            new = ranks[left] = rank_of(ids[left] << ID_BITS | token, NO_RANK)
            if new != NO_RANK:
                heappush(heap, new << PLACE_SHIFT | left)
    return [token for token in ids if token >= 0]


def merge_everywhere(ids: Array, ranks: Array, pairs: PairTable) -> tuple[Array, Array]:
    """Merge every place of the lowest pair at once, until a pair has too few places for that to pay.

    Exact where merges are ordered: a pair that comes about uses the new token, and so ranks after the one merged.
    """
    while len(ranks):
        rank = int(ranks.min())
        places = np.flatnonzero(ranks == rank)  # [place]
        if rank == NO_RANK or len(places) < 100 + len(ids) // PAYING_SHARE:
            break
        places = without_overlap(places)
        ids[places] = pairs.made[rank]
        kept = np.ones(len(ids), bool)  # [symbol]
        kept[places + 1] = False
        ids = ids[kept]
        ranks = np.append(ranks, NO_RANK)[kept][:-1]  # [symbol - 1]
        here = places - np.arange(len(places))  # [place], in the new numbering
        for changed in (here[here < len(ranks)], here[here > 0] - 1):
            ranks[changed] = pairs.ranks(ids[changed], ids[changed + 1])
    return ids, ranks


def without_overlap(places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Of places one apart (aa in aaa), every second one of a run, from the left.

    >>> without_overlap(np.array([0, 1, 2, 5])).tolist()
    [0, 2, 5]
    """
    opens = np.ones(len(places), bool)  # [place]
    opens[1:] = np.diff(places) != 1
    first = places[opens][np.cumsum(opens) - 1]  # [place]: where its run begins
    kept: npt.NDArray[np.int64] = places[(places - first) % 2 == 0]
    return kept
