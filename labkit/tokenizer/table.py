"""Pieces of at most 16 bytes, looked up by the thousand: an open-addressing table whose keys are the bytes themselves.

In: keys of one or two 64-bit words. Out: one packed value each: how many ids the piece has, and where they stand
in the store. Keys are compared in full, so that a collision cannot give a wrong answer.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from labkit.tokenizer.pairs import MULTIPLIER, claim_slots

WORD: Final = 8  # bytes in a key's word
LONGEST: Final = 16  # bytes in two words
COUNT_SHIFT: Final = np.uint64(40)
OFFSET_MASK: Final = np.uint64((1 << 40) - 1)
SECOND_MULTIPLIER: Final = np.uint64(0xC2B2AE3D27D4EB4F)  # odd, from xxHash: spreads the second word

Words = npt.NDArray[np.uint64]
_LOW = np.array([(1 << 8 * n) - 1 for n in range(WORD)] + [(1 << 64) - 1], np.uint64)  # [length], more as the last
_HIGH = np.array([0] * WORD + [(1 << 8 * n) - 1 for n in range(WORD)] + [(1 << 64) - 1], np.uint64)  # [length]


def pack(counts: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> Words:
    """Count and offset in one word; never 0, which means absent."""
    return counts.astype(np.uint64) << COUNT_SHIFT | offsets.astype(np.uint64)


def byte_windows(data: bytes) -> Words:
    """For every place the eight bytes from there, as one little-endian word; behind the end stands NUL."""
    overlapping = np.ndarray((len(data) + WORD,), "<u8", data + bytes(2 * WORD), strides=(1,))  # [byte + 8]
    return np.ascontiguousarray(overlapping)  # once, or every ``take`` would do it


def low_words(windows: Words, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Words:
    """The first eight bytes of pieces, those behind their end as NUL.

    >>> low_words(byte_windows(b"ab the"), np.array([0, 2]), np.array([2, 4])).view("S8").tolist()
    [b'ab', b' the']
    """
    words: Words = windows.take(starts)  # [piece]
    words &= _LOW.take(lengths, mode="clip")
    return words


def high_words(windows: Words, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Words:
    """The eight bytes after the first eight, for pieces of at most 16 bytes."""
    words: Words = windows.take(starts + np.minimum(lengths, WORD))  # [piece]
    words &= _HIGH.take(lengths, mode="clip")
    return words


class KeyTable:
    """Keys of one or two words; key 0 marks a free slot, and looking it up finds nothing."""

    def __init__(self, *, words: int, bits: int) -> None:
        self.words = words
        self._shift = np.uint64(64 - bits)
        self._keys = tuple(np.zeros(1 << bits, np.uint64) for _ in range(words))  # [slot] each
        self._values = np.zeros(1 << bits, np.uint64)  # [slot]
        self._taken = np.zeros(1 << bits, bool)  # [slot]
        self._owner = np.empty(1 << bits, np.int32)  # [slot]
        self.clear()

    def clear(self) -> None:
        for array in (*self._keys, self._values, self._taken):
            array[:] = 0
        self._taken[0] = True  # the slot of key 0
        self.used = 1

    @property
    def crowded(self) -> bool:
        """More than half full: probing becomes slow."""
        return self.used * 2 > len(self._values)

    def room(self) -> int:
        """How many keys may still be inserted."""
        return len(self._values) * 3 // 4 - self.used

    def insert(self, keys: tuple[Words, ...], values: Words) -> None:
        """Add keys that are distinct and not there yet, the most wanted first; there must be room."""
        assert len(values) <= self.room(), "the caller asks for room first"
        slots = claim_slots(self._slots(keys), self._taken, self._owner)  # [key]
        for held, words in zip(self._keys, keys, strict=True):
            held[slots] = words
        self._values[slots] = values
        self.used += len(values)

    def find(self, keys: tuple[Words, ...]) -> Words:
        """The value of each key, 0 where it is absent."""
        slots = self._slots(keys)  # [key]
        same = self._same(slots, keys)  # [key]
        values = self._values.take(slots)  # [key]
        waiting = np.flatnonzero(~same)  # [waiting]
        if not waiting.size:
            return values
        values[waiting] = 0
        waiting = waiting[self._taken[slots[waiting]]]
        while waiting.size:
            slots[waiting] = (slots[waiting] + 1) & (len(self._values) - 1)
            at = slots[waiting]  # [waiting]
            same = self._same(at, tuple(words[waiting] for words in keys))  # [waiting]
            values[waiting[same]] = self._values[at[same]]
            waiting = waiting[~same & self._taken[at]]
        return values

    def _same(self, slots: npt.NDArray[np.int64], keys: tuple[Words, ...]) -> npt.NDArray[np.bool_]:
        same: npt.NDArray[np.bool_] = self._keys[0].take(slots) == keys[0]  # [key]
        for held, words in zip(self._keys[1:], keys[1:], strict=True):
            same &= held.take(slots) == words
        return same

    def _slots(self, keys: tuple[Words, ...]) -> npt.NDArray[np.int64]:
        mixed = keys[0] if len(keys) == 1 else keys[0] ^ (keys[1] * SECOND_MULTIPLIER)  # [key]
        return ((mixed * MULTIPLIER) >> self._shift).view(np.int64)


def unique_keys(keys: tuple[Words, ...]) -> tuple[tuple[Words, ...], npt.NDArray[np.int64]]:
    """The distinct keys, and for each given key the index of its distinct one.

    >>> unique, back = unique_keys((np.array([7, 5, 7], np.uint64),))
    >>> unique[0].tolist(), back.tolist()
    ([5, 7], [1, 0, 1])
    """
    order = np.lexsort(keys[::-1]) if len(keys) > 1 else np.argsort(keys[0], kind="stable")  # [key]
    ordered = [words[order] for words in keys]
    new = np.ones(len(order), bool)  # [key]
    new[1:] = np.any([words[1:] != words[:-1] for words in ordered], axis=0)
    back = np.empty(len(order), np.int64)  # [key]
    back[order] = np.cumsum(new) - 1
    return tuple(words[new] for words in ordered), back


class IdStore:
    """Ids one behind the other; grows as needed."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.ids = np.zeros(1 << 16, dtype)  # [place]
        self.used = 0

    def add(self, ids: npt.NDArray[np.integer]) -> int:
        """Append ids; the place of the first."""
        start, self.used = self.used, self.used + len(ids)
        if self.used > len(self.ids):
            grown = np.zeros(max(2 * len(self.ids), self.used), self.ids.dtype)  # [place]
            grown[:start] = self.ids[:start]
            self.ids = grown
        self.ids[start : self.used] = ids
        return start
