"""Merging by scanning a list of ranks: the quickest way for one short piece.

In: the ids of bytes, or of symbols merged so far. Out: ids.
"""

from itertools import pairwise

from labkit.tokenizer.pairs import NO_RANK, PairTable
from labkit.tokenizer.vocabulary import ID_BITS


def scan(ids: list[int], pairs: PairTable, places: list[int] | None = None) -> list[int]:
    """Merge by scanning a list of ranks for the lowest; quick for short lists, quadratic for long ones.

    Of ``places``, one per id, those of swallowed ids are taken out.
    """
    rank_of, made = pairs.vocabulary.rank_of.get, pairs.vocabulary.made
    ranks = [rank_of(a << ID_BITS | b, NO_RANK) for a, b in pairwise(ids)]
    while ranks:
        rank = min(ranks)
        if rank == NO_RANK:
            break
        place = ranks.index(rank)
        token = ids[place] = made[rank]
        del ids[place + 1], ranks[place]
        if places is not None:
            del places[place + 1]
        if place:
            ranks[place - 1] = rank_of(ids[place - 1] << ID_BITS | token, NO_RANK)
        if place < len(ranks):
            ranks[place] = rank_of(token << ID_BITS | ids[place + 1], NO_RANK)
    return ids
