"""Training a byte-level BPE: which merges, in which order.

In: pieces of text with their counts. Out: one step a merge, and at the end a vocabulary. Source: Sennrich, Haddow,
Birch 2016; ties as tokenizers' BpeTrainer breaks them: of equally frequent pairs the one with the lower left id, then
the lower right id. Ids are given as there: special tokens, then the 256 bytes in the order of their symbols, then
merges. Counts are kept up to date, never counted again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

from labkit.errors import ArgumentError, FileAccessError, TextError
from labkit.outside import require_regular
from labkit.tokenizer.alphabet import BYTE_OF_SYMBOL, to_symbols
from labkit.tokenizer.split import split_text
from labkit.tokenizer.vocabulary import ID_BITS, MAXIMUM_ID, AddedToken, Merges, Vocabulary, build_vocabulary

END_OF_TEXT: Final = "<|endoftext|>"
BYTES_IN_ORDER: Final = dict(sorted(BYTE_OF_SYMBOL.items()))  # by symbol, as their ids run
KEY_BITS: Final = 2 * ID_BITS
KEY_MASK: Final = (1 << KEY_BITS) - 1


@dataclass(frozen=True, slots=True)
class PairCount:
    """Two neighbours and how often they stand side by side."""

    left: bytes
    right: bytes
    count: int


@dataclass(frozen=True, slots=True)
class TrainStep:
    """One merge of the training: the pair that won, the next most frequent ones, and the id of what it makes."""

    rank: int
    winner: PairCount
    runners_up: tuple[PairCount, ...]
    token_id: int


def count_pieces(lines: Iterable[str]) -> Counter[bytes]:
    """How often each piece occurs; every line is split for itself, as tokenizers does with files.

    >>> count_pieces(["a a b\\n", "a"]) == {b"a": 2, b" a": 1, b" b": 1, b"\\n": 1}
    True
    """
    pieces = Counter(chain.from_iterable(map(split_text, lines)))
    return Counter({piece.encode("utf-8"): count for piece, count in pieces.items()})


def read_lines(paths: Iterable[Path]) -> Iterator[str]:
    """The lines of UTF-8 files, with their ends; MissingFileError, FileAccessError, TextError name the file."""
    for path in paths:
        require_regular(path)
        try:
            with path.open(encoding="utf-8", newline="\n") as file:
                yield from file
        except OSError as error:
            raise FileAccessError(f"cannot be read ({error.strerror})", where=path) from None
        except UnicodeDecodeError as error:
            raise TextError("is not UTF-8", where=path, got=hex(error.object[error.start])) from None


def train(
    pieces: Mapping[bytes, int],
    *,
    vocabulary_size: int,
    special_tokens: Sequence[str] = (END_OF_TEXT,),
    minimum_count: int = 2,
) -> Vocabulary:
    """The vocabulary of at most ``vocabulary_size`` tokens that the pieces give.

    >>> vocabulary = train({b"abab": 3, b"ab": 1}, vocabulary_size=259)
    >>> [vocabulary.tokens[token] for token in vocabulary.made]
    [b'ab', b'abab']
    """
    steps = train_steps(
        pieces,
        vocabulary_size=vocabulary_size,
        special_tokens=special_tokens,
        minimum_count=minimum_count,
        runners_up=0,
    )
    return vocabulary_of(steps, special_tokens=special_tokens)


def vocabulary_of(steps: Iterable[TrainStep], *, special_tokens: Sequence[str] = (END_OF_TEXT,)) -> Vocabulary:
    """The vocabulary that the steps of a training make."""
    names = {name: token for token, name in enumerate([*special_tokens, *BYTES_IN_ORDER])}
    left: list[str] = []
    right: list[str] = []
    for step in steps:
        left.append(to_symbols(step.winner.left))
        right.append(to_symbols(step.winner.right))
        names[left[-1] + right[-1]] = step.token_id
    added = [AddedToken(name, names[name]) for name in special_tokens]
    return build_vocabulary(names, Merges(left, right, None, "the training"), added=added, where="the training")


def train_steps(
    pieces: Mapping[bytes, int],
    *,
    vocabulary_size: int,
    special_tokens: Sequence[str] = (END_OF_TEXT,),
    minimum_count: int = 2,
    runners_up: int = 3,
) -> Iterator[TrainStep]:
    """The merges of a training, most frequent pair first, each with its closest competitors.

    Ends when the vocabulary is full or no pair occurs ``minimum_count`` times.

    Raises ArgumentError for a size that cannot hold the bytes, or is beyond the largest id.
    """
    base = len(special_tokens) + 256
    if not base <= vocabulary_size <= MAXIMUM_ID + 1:
        limits = f"{base} (the bytes and special tokens) to {MAXIMUM_ID + 1}"
        raise ArgumentError("the vocabulary's size is out of range", expected=limits, got=vocabulary_size)
    tokens = [name.encode("utf-8") for name in special_tokens]
    tokens += [bytes([byte]) for byte in BYTES_IN_ORDER.values()]
    ids = {data: token for token, data in enumerate(tokens) if token >= len(special_tokens)}
    state = _Counts([[ids[bytes([byte])] for byte in piece] for piece in pieces], list(pieces.values()))
    rank = 0
    while len(tokens) < vocabulary_size:
        best = state.most_frequent(minimum_count)
        if best is None:
            return
        left, right, count = best
        data = tokens[left] + tokens[right]
        token = ids.setdefault(data, len(tokens))
        if token == len(tokens):
            tokens.append(data)
        others = tuple(PairCount(tokens[a], tokens[b], n) for a, b, n in state.next_frequent(runners_up))
        yield TrainStep(rank, PairCount(tokens[left], tokens[right], count), others, token)
        state.merge(left, right, token)
        rank += 1


class _Counts:
    """Words as symbols, the count of every pair, and which words hold it.

    The heap's entries are pair keys less the count shifted up, so that the smallest is the most frequent pair, and of
    equally frequent ones the lowest; an entry whose count is out of date is put back with the right one.
    """

    def __init__(self, words: list[list[int]], counts: list[int]) -> None:
        self._words = words
        self._counts = counts
        self._pairs: dict[int, int] = {}
        self._where: dict[int, set[int]] = {}
        for index, (word, count) in enumerate(zip(words, counts, strict=True)):
            for left, right in pairwise(word):
                key = left << ID_BITS | right
                self._pairs[key] = self._pairs.get(key, 0) + count
                self._where.setdefault(key, set()).add(index)
        self._heap = [key - (count << KEY_BITS) for key, count in self._pairs.items()]
        heapify(self._heap)

    def most_frequent(self, minimum: int) -> tuple[int, int, int] | None:
        """Left id, right id and count of the most frequent pair, taken out of the heap; None below ``minimum``."""
        while self._heap:
            entry = heappop(self._heap)
            key, count = entry & KEY_MASK, -(entry >> KEY_BITS)
            now = self._pairs.get(key, 0)
            if now == count:
                if count < max(minimum, 1):
                    return None
                return key >> ID_BITS, key & MAXIMUM_ID, count
            if now > 0:
                heappush(self._heap, key - (now << KEY_BITS))
        return None

    def next_frequent(self, number: int) -> list[tuple[int, int, int]]:
        """As ``most_frequent``, the next few, left where they are."""
        found: list[tuple[int, int, int]] = []
        while len(found) < number and (best := self.most_frequent(1)) is not None:
            if best not in found:
                found.append(best)
        for left, right, count in found:
            heappush(self._heap, (left << ID_BITS | right) - (count << KEY_BITS))
        return found

    def merge(self, left: int, right: int, token: int) -> None:
        """Merge a pair in every word that holds it, and keep the counts of the pairs around it."""
        merged = left << ID_BITS | right
        pairs, where = self._pairs, self._where
        touched: set[int] = set()
        for index in where.pop(merged, ()):
            word, count = self._words[index], self._counts[index]
            place = 0
            while (place := _find(word, left, right, place)) >= 0:
                if place:
                    before = word[place - 1]
                    pairs[before << ID_BITS | left] -= count
                    key = before << ID_BITS | token
                    pairs[key] = pairs.get(key, 0) + count
                    where.setdefault(key, set()).add(index)
                    touched.add(key)
                word[place : place + 2] = [token]
                place += 1
                if place < len(word):
                    after = word[place]
                    pairs[right << ID_BITS | after] -= count
                    key = token << ID_BITS | after
                    pairs[key] = pairs.get(key, 0) + count
                    where.setdefault(key, set()).add(index)
                    touched.add(key)
        pairs.pop(merged, None)
        for key in touched:
            if key in pairs and pairs[key] > 0:
                heappush(self._heap, key - (pairs[key] << KEY_BITS))


def _find(word: list[int], left: int, right: int, start: int) -> int:
    """Where the pair next stands in a word; -1 where it does not."""
    try:
        while True:
            start = word.index(left, start)
            if word[start + 1] == right:
                return start
            start += 1
    except (ValueError, IndexError):
        return -1
