"""Ranks of pairs for whole arrays of ids at once.

In: two arrays of ids. Out: the rank of each pair's merge. An open-addressing table with linear probing; keys are
compared in full, so that a collision cannot give a wrong answer.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from labkit.tokenizer.vocabulary import ID_BITS, Vocabulary

NO_RANK: Final = 1 << 24  # above every rank: ids, and so ranks, stay below 2^20
FREE: Final = np.uint64((1 << 64) - 1)  # no key: a key has 40 bits
MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio (Fibonacci hashing)

Array = npt.NDArray[np.int32]


class PairTable:
    """The merges of a vocabulary as arrays.

    ``byte_ids`` [256], ``byte_ranks`` [65536] (by left byte and right byte) and ``made`` [rank] are read directly.
    ``ordered``: every merge that uses a token comes after every merge that makes it, as training writes them; then
    all places of one pair may be merged at once.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        left = np.array(vocabulary.left, np.uint64)  # [rank]
        right = np.array(vocabulary.right, np.uint64)  # [rank]
        self.made = np.array(vocabulary.made, np.int32)  # [rank]
        self._shift = np.uint64(64 - max(4, (4 * len(self.made)).bit_length()))
        size = 1 << (64 - int(self._shift))
        self._keys = np.full(size, FREE, np.uint64)  # [slot]
        self._ranks = np.full(size, NO_RANK, np.int32)  # [slot]
        keys = left << np.uint64(ID_BITS) | right  # [rank]
        slots = claim_slots(self._slots(keys), np.zeros(size, bool), np.empty(size, np.int32))  # [rank]
        self._keys[slots] = keys
        self._ranks[slots] = np.arange(len(keys))
        self.byte_ids = np.array(vocabulary.byte_ids, np.int32)  # [byte]
        first, second = np.divmod(np.arange(65536), 256)  # [pair of bytes]
        self.byte_ranks = self.ranks(self.byte_ids[first], self.byte_ids[second])  # [pair of bytes]
        self.ordered = _is_ordered(left, right, self.made, vocabulary.size)
        self.hard = _hard_pairs(vocabulary)  # [pair of bytes]

    def ranks(self, left: Array, right: Array) -> Array:
        """The rank of each pair, ``NO_RANK`` where there is no such merge."""
        keys = left.astype(np.uint64) << np.uint64(ID_BITS) | right.astype(np.uint64)  # [pair]
        slots = self._slots(keys)  # [pair]
        found = self._keys.take(slots)  # [pair]
        ranks = self._ranks.take(slots)  # [pair]
        wrong = np.flatnonzero(found != keys)  # [wrong]
        if wrong.size:
            ranks[wrong] = NO_RANK
        wrong = wrong[found[wrong] != FREE]
        while wrong.size:
            slots[wrong] = (slots[wrong] + 1) & (len(self._keys) - 1)
            found = self._keys[slots[wrong]]  # [wrong]
            hit = found == keys[wrong]  # [wrong]
            ranks[wrong[hit]] = self._ranks[slots[wrong[hit]]]
            wrong = wrong[~hit & (found != FREE)]
        return ranks

    def _slots(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        return ((keys * MULTIPLIER) >> self._shift).view(np.int64)


def claim_slots(
    wanted: npt.NDArray[np.int64], taken: npt.NDArray[np.bool_], owner: npt.NDArray[np.int32]
) -> npt.NDArray[np.int64]:
    """A free slot for each key, at or after the wanted one; marks it taken. ``owner`` is scratch of the table's size.

    >>> taken = np.zeros(4, bool)
    >>> slots = claim_slots(np.array([1, 1, 3]), taken, np.empty(4, np.int32))
    >>> sorted(slots.tolist()), taken.tolist()
    ([1, 2, 3], [False, True, True, True])
    """
    slots = wanted.copy()  # [key]
    waiting = np.arange(len(slots), dtype=np.int32)[::-1]  # [waiting]; several want one slot: the first key gets it
    while waiting.size:
        at = slots[waiting]  # [waiting]
        free = ~taken[at]  # [waiting]
        owner[at[free]] = waiting[free]
        won = free & (owner[at] == waiting)  # [waiting]
        taken[at[won]] = True
        waiting = waiting[~won]
        slots[waiting] = (slots[waiting] + 1) & (len(taken) - 1)
    return slots


def _is_ordered(left: npt.NDArray[np.uint64], right: npt.NDArray[np.uint64], made: Array, size: int) -> bool:
    last_made = np.full(size, -1, np.int64)  # [id]
    last_made[made] = np.arange(len(made))  # ranks grow, so the last one stays
    ranks = np.arange(len(made))  # [rank]
    return bool(np.all(last_made[left.astype(np.int64)] < ranks) and np.all(last_made[right.astype(np.int64)] < ranks))


def _hard_pairs(vocabulary: Vocabulary) -> npt.NDArray[np.bool_]:
    """The pairs of bytes that stand side by side in no token that a merge makes: no merge crosses them."""
    spelled = vocabulary.spelled
    data = np.frombuffer(spelled.data, np.uint8).astype(np.int64)  # [byte]
    left = np.array(vocabulary.left, np.int64)  # [rank]
    last = data[spelled.begins[left] + spelled.lengths[left] - 1]  # [rank]
    first = data[spelled.begins[np.array(vocabulary.right, np.int64)]]  # [rank]
    hard = np.ones(65536, bool)  # [pair of bytes]
    hard[last << 8 | first] = False
    return hard
