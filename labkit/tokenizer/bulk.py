"""The fast road for long texts: block by block, all pieces of a block at once.

In: a text. Out: an array of ids. A block's pieces are found (boundaries.py), long ones cut again where no merge can
cross, and looked up by their bytes (table.py); those never seen are merged side by side (rounds.py) and remembered.
What the tables hold is a cache: exact whatever was seen before, and bounded.
"""

from threading import Lock
from typing import Final

import numpy as np
import numpy.typing as npt

from labkit.tokenizer.blocks import blocks_of
from labkit.tokenizer.boundaries import cut_long_pieces, piece_starts, ranges_of
from labkit.tokenizer.giants import merge_piece
from labkit.tokenizer.pairs import PairTable
from labkit.tokenizer.rounds import MAXIMUM_WIDTH, merge_rows
from labkit.tokenizer.seeds import Seeds
from labkit.tokenizer.table import (
    COUNT_SHIFT,
    LONGEST,
    OFFSET_MASK,
    WORD,
    IdStore,
    KeyTable,
    Words,
    byte_windows,
    high_words,
    low_words,
    pack,
    unique_keys,
)

SLICE: Final = 1 << 16  # pieces looked up at once
LONG_PIECES: Final = 1 << 14  # remembered at most
STORE_LIMIT: Final = 1 << 21  # ids remembered at most
ROWS_PAY: Final = 200  # pieces; fewer are merged one at a time
REMEMBERED: Final = 256  # bytes; longer pieces are not worth remembering

Offsets = npt.NDArray[np.int64]


class BulkEncoder:
    """Encodes long texts; keeps what it has seen. One thread at a time is inside; others wait a block long."""

    def __init__(self, pairs: PairTable) -> None:
        self._pairs = pairs
        self._seeds = Seeds(pairs)
        self._lock = Lock()
        self.dtype = pairs.vocabulary.dtype
        self._short = KeyTable(words=1, bits=18)
        self._middle = KeyTable(words=2, bits=17)
        self._reset()

    def encode(self, text: str) -> npt.NDArray[np.unsignedinteger]:
        """The ids of a text without surrogates."""
        parts = [self._encode_block(block.encode("utf-8")) for block in blocks_of(text)]
        if not parts:
            return np.zeros(0, self.dtype)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _encode_block(self, data: bytes) -> npt.NDArray[np.unsignedinteger]:
        flags = piece_starts(data)  # [byte]
        cut_long_pieces(flags, data, self._pairs.hard, longest=LONGEST)
        parts = []
        with self._lock:
            for low, high in ranges_of(flags, SLICE):
                starts = np.flatnonzero(flags[low:high])  # [piece]
                parts.append(self._encode_pieces(data[low:high], starts, np.append(starts[1:], high - low)))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _encode_pieces(self, data: bytes, starts: Offsets, ends: Offsets) -> npt.NDArray[np.unsignedinteger]:
        windows = byte_windows(data)
        lengths = ends - starts  # [piece]
        low = low_words(windows, starts, lengths)  # [piece]
        middle = np.flatnonzero(lengths > WORD)  # [middle]
        odd = middle[lengths[middle] > LONGEST]  # [odd]: not in the tables
        middle = middle[lengths[middle] <= LONGEST]
        if b"\0" in data:
            odd, middle = _set_aside_nul(data, starts, odd, middle)
        high = high_words(windows, starts[middle], lengths[middle])  # [middle]
        keys = (low[middle], high)
        low[middle] = 0
        low[odd] = 0
        values = self._short.find((low,))  # [piece]
        values[middle] = self._middle.find(keys)
        missing = np.flatnonzero(values == 0)  # [missing]
        if missing.size > odd.size:
            short = missing[low[missing] != 0]  # [short]
            at = np.flatnonzero(values[middle] == 0)  # [at]
            learnt = self._learn((low[short],), (keys[0][at], keys[1][at]))
            values[short], values[middle[at]] = learnt
        if odd.size:
            values[odd] = self._look_up_odd(data, starts[odd], ends[odd])
        ids = gather(values, self._store.ids)
        if self._short.crowded or self._middle.crowded or self._store.used > STORE_LIMIT:
            self._reset()
        return ids

    def _learn(self, short: tuple[Words, ...], middle: tuple[Words, ...]) -> tuple[Words, Words]:
        """Merge pieces that the tables do not hold, side by side, and remember them; their values."""
        short, short_back = unique_keys(short)
        middle, middle_back = unique_keys(middle)
        count = len(short[0])
        words = np.zeros((count + len(middle[0]), 2), np.uint64)  # [unique, word]
        words[:count, 0] = short[0]
        words[count:, 0], words[count:, 1] = middle
        ids, counts = merge_rows(words.view(np.uint8), self._pairs)
        values = pack(counts, np.cumsum(counts) - counts + self._store.add(ids))  # [unique]
        for table, keys, mine in ((self._short, short, values[:count]), (self._middle, middle, values[count:])):
            if len(mine) <= table.room():
                table.insert(keys, mine)
        return values[:count][short_back], values[count:][middle_back]

    def _look_up_odd(self, data: bytes, starts: Offsets, ends: Offsets) -> Words:
        """The values of pieces that fit no table."""
        pieces = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        known = self._long
        fresh = [piece for piece in dict.fromkeys(pieces) if piece not in known]
        if len(known) + len(fresh) > LONG_PIECES:
            known.clear()
            fresh = list(dict.fromkeys(pieces))
        merged = dict(zip(fresh, self._merge_odd(fresh), strict=True))
        known.update((piece, merged[piece]) for piece in fresh if len(piece) <= REMEMBERED)
        values = [merged[piece] if piece in merged else known[piece] for piece in pieces]
        return np.array(values, np.uint64)  # [odd]

    def _merge_odd(self, pieces: list[bytes]) -> list[int]:
        """The value of each piece: side by side where rows can hold enough of them, one at a time otherwise."""
        fitting = [piece for piece in pieces if len(piece) <= MAXIMUM_WIDTH and 0 not in piece]
        done: dict[bytes, int] = {}
        if len(fitting) >= ROWS_PAY:
            width = max(map(len, fitting))
            joined = b"".join(piece.ljust(width, b"\0") for piece in fitting)
            ids, counts = merge_rows(np.frombuffer(joined, np.uint8).reshape(-1, width), self._pairs)
            values = pack(counts, np.cumsum(counts) - counts + self._store.add(ids))  # [fitting]
            done = dict(zip(fitting, values.tolist(), strict=True))
        for piece in pieces:
            if piece not in done:
                merged = np.array(merge_piece(piece, self._pairs))  # [token]
                done[piece] = len(merged) << int(COUNT_SHIFT) | self._store.add(merged)
        return [done[piece] for piece in pieces]

    def _reset(self) -> None:
        """Forget everything but the vocabulary's own tokens."""
        self._long: dict[bytes, int] = {}
        self._store = IdStore(self.dtype)
        self._store.add(self._seeds.ids)
        for table, (keys, values) in ((self._short, self._seeds.short), (self._middle, self._seeds.middle)):
            table.clear()
            room = table.room()
            table.insert(tuple(words[:room] for words in keys), values[:room])


def gather(values: Words, store: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.unsignedinteger]:
    """The ids that values stand for, in order.

    The place in the store of each id of the result is the place of the one before and one more, but for a jump where
    a piece begins: so it is a running sum.
    """
    counts = (values >> COUNT_SHIFT).view(np.int64)  # [piece]
    places = (values & OFFSET_MASK).view(np.int64)  # [piece]
    begins = np.cumsum(counts)  # [piece]; one late: where the next piece begins
    jumps = np.ones(int(begins[-1]), np.int64)  # [token]
    jumps[0] = places[0]
    jumps[begins[:-1]] = places[1:] - places[:-1] - counts[:-1] + 1
    return store.take(np.cumsum(jumps, out=jumps))


def _set_aside_nul(data: bytes, starts: Offsets, odd: Offsets, middle: Offsets) -> tuple[Offsets, Offsets]:
    """Pieces that hold NUL count as odd: the tables pad with it."""
    nul = np.flatnonzero(np.frombuffer(data, np.uint8) == 0)  # [nul]
    owners = np.unique(np.searchsorted(starts, nul, "right") - 1)  # [owner]
    return np.union1d(odd, owners), np.setdiff1d(middle, owners, assume_unique=True)
