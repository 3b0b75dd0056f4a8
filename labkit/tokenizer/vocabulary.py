"""What the files of a byte-level BPE mean, checked once: ids, bytes, and the rank of every merge.

In: names with their ids and an ordered list of merges, as files.py reads them. Out: one ``Vocabulary``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from labkit.errors import VocabularyError
from labkit.tokenizer.alphabet import BYTE_OF_SYMBOL, SYMBOL_OF_BYTE, from_symbols, many_from_symbols

ID_BITS = 20  # an id fits beside another in one key, and beside a count and an offset in one table slot
MAXIMUM_ID = (1 << ID_BITS) - 1
_MARKED = re.compile(r"<.*>|\[.*\]", re.DOTALL)  # how special tokens are written where no file lists them


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token found in the text by its name, before the split; the flags are those of tokenizer.json."""

    content: str
    id: int
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


@dataclass(frozen=True, slots=True)
class Merges:
    """The pairs of symbols in order of rank; ``lines`` are their lines in merges.txt, from 1, where one was read."""

    left: Sequence[str]
    right: Sequence[str]
    lines: Sequence[int] | None
    where: str

    def place(self, rank: int) -> str:
        """Where a merge stands, for an error."""
        return f"{self.where}, line {self.lines[rank]}" if self.lines is not None else f"{self.where}, merge {rank}"


@dataclass(frozen=True, slots=True)
class Spelled:
    """The bytes of every token, joined; where each id's begin [id], and how many they are [id], -1 for no token."""

    data: bytes
    begins: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Vocabulary:
    """Ids to bytes, and pairs of ids to ranks.

    ``tokens[id]`` are the token's bytes (None where no token has the id), ``byte_ids[byte]`` the id of a single byte
    (-1 where there is none), ``rank_of[pair_key(left, right)]`` the rank of a merge, and ``left``, ``right``, ``made``
    give the ids that the merge of a rank joins and makes. ``released`` says that the merges are GPT-2's own, of which
    it is known that every token's bytes encode to that token.
    """

    tokens: Sequence[bytes | None]
    byte_ids: tuple[int, ...]
    left: Sequence[int]
    right: Sequence[int]
    made: Sequence[int]
    lines: Sequence[int] | None
    added: tuple[AddedToken, ...]
    notes: tuple[str, ...]
    released: bool = False

    @cached_property
    def rank_of(self) -> Mapping[int, int]:
        return dict(zip(pair_keys(self.left, self.right).tolist(), range(len(self.made)), strict=True))

    @cached_property
    def spelled(self) -> "Spelled":
        """All tokens' bytes in one row."""
        lengths = np.array([-1 if data is None else len(data) for data in self.tokens], np.int64)  # [id]
        used = np.maximum(lengths, 0)  # [id]
        return Spelled(b"".join(filter(None, self.tokens)), np.cumsum(used) - used, lengths)

    @property
    def size(self) -> int:
        """The number of rows an embedding needs: the highest id and one."""
        return len(self.tokens)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smaller of uint16 and uint32 that holds every id."""
        return np.dtype(np.uint16 if self.size <= 1 << 16 else np.uint32)

    def missing_bytes(self) -> tuple[int, ...]:
        return tuple(byte for byte, token in enumerate(self.byte_ids) if token < 0)


def pair_key(left: int, right: int) -> int:
    """Two ids in one integer.

    >>> hex(pair_key(0x1, 0x2))
    '0x100002'
    """
    return left << ID_BITS | right


def pair_keys(left: Sequence[int], right: Sequence[int]) -> npt.NDArray[np.int64]:
    """As ``pair_key`` for whole lists."""
    return np.array(left, np.int64) << ID_BITS | np.array(right, np.int64)  # [rank]


def build_vocabulary(
    names: Mapping[str, int],
    merges: Merges,
    *,
    added: Iterable[AddedToken] = (),
    where: str = "vocab.json",
    notes: Iterable[str] = (),
    released: bool = False,
) -> Vocabulary:
    """Check names and merges against each other, and turn names into bytes.

    Raises VocabularyError that names the file and the key or line for: an id that is not a whole number of at least
    0, two names with one id, a merge that joins or makes a token outside the vocabulary, a pair listed twice, a
    symbol outside the 256 of the alphabet.
    """
    said = list(notes)
    extra = tuple(added)
    _check_ids(names, where)
    for each in extra:
        _check_id(each.content, each.id, f"{where}, added tokens")
    left, right, made = _merge_ids(names, merges, where)
    keys = pair_keys(left, right)  # [rank]
    if np.any(np.diff(np.sort(keys)) == 0):
        _refuse_repeated_pair(keys.tolist(), merges)
    listed = {token.content for token in extra}
    loose = _loose_names(names, made, listed)
    marked = [AddedToken(name, names[name]) for name in loose if _MARKED.fullmatch(name)]
    unmade = [name for name in loose if not _MARKED.fullmatch(name)]
    if unmade:
        said.append(f"{where}: no merge makes {len(unmade)} of the tokens, the first is {unmade[0]!r}")
    extra += tuple(marked)
    tokens = _token_bytes(names, extra, where)
    gaps = tokens.count(None)
    if gaps:
        said.append(f"{where}: {gaps} ids below {len(tokens)} have no token, the first is {tokens.index(None)}")
    byte_ids = tuple(names.get(symbol, -1) for symbol in SYMBOL_OF_BYTE)
    return Vocabulary(tokens, byte_ids, left, right, made, merges.lines, extra, tuple(said), released)


def _check_ids(names: Mapping[str, int], where: str) -> None:
    if not names:
        raise VocabularyError("holds no token", where=where, expected="names with their ids")
    if "" in names:
        raise VocabularyError("a token has no name", where=where, got=f"'' with id {names['']}")
    values = names.values()
    if (
        set(map(type, values)) == {int}
        and min(values) >= 0
        and max(values) <= MAXIMUM_ID
        and len(set(values)) == len(names)
    ):
        return
    for name, token in names.items():
        _check_id(name, token, where)
    owner: dict[int, str] = {}
    for name, token in names.items():
        if token in owner:
            raise VocabularyError(f"tokens {owner[token]!r} and {name!r} both have id {token}", where=where)
        owner[token] = name


def _check_id(name: str, token: object, where: str) -> None:
    if type(token) is not int or not 0 <= token <= MAXIMUM_ID:
        limits = f"a whole number from 0 to {MAXIMUM_ID}"
        raise VocabularyError(f"the id of token {name!r} is unusable", where=where, expected=limits, got=repr(token))


def _merge_ids(names: Mapping[str, int], merges: Merges, where: str) -> tuple[list[int], list[int], list[int]]:
    try:
        left = list(map(names.__getitem__, merges.left))
        right = list(map(names.__getitem__, merges.right))
        made = list(map(names.__getitem__, map(add, merges.left, merges.right)))
    except KeyError:
        for rank, (a, b) in enumerate(zip(merges.left, merges.right, strict=True)):
            for symbol in (a, b):
                if symbol not in names:
                    from_symbols(symbol)  # a foreign symbol has its own message
                    raise VocabularyError(
                        f"the merge {a!r} {b!r} joins {symbol!r}, which is not in {where}", where=merges.place(rank)
                    ) from None
            if a + b not in names:
                raise VocabularyError(
                    f"the merge {a!r} {b!r} makes {a + b!r}, which is not in {where}", where=merges.place(rank)
                ) from None
        raise
    return left, right, made


def _refuse_repeated_pair(keys: Sequence[int], merges: Merges) -> None:
    first: dict[int, int] = {}
    for rank, key in enumerate(keys):
        if key in first:
            pair = f"{merges.left[rank]!r} {merges.right[rank]!r}"
            raise VocabularyError(f"the merge {pair} stands twice", where=merges.place(rank), expected="each pair once")
        first[key] = rank


def _loose_names(names: Mapping[str, int], made: Sequence[int], listed: set[str]) -> list[str]:
    """Names that are neither a byte, nor made by a merge, nor listed as added."""
    known = bytearray(MAXIMUM_ID + 1)
    for token in made:
        known[token] = True
    loose = [name for name, token in names.items() if not known[token]]
    return [name for name in loose if name not in BYTE_OF_SYMBOL and name not in listed]


def _token_bytes(names: Mapping[str, int], added: Sequence[AddedToken], where: str) -> list[bytes | None]:
    special = {token.content: token.id for token in added}
    plain = [name for name in names if name not in special]
    tokens: list[bytes | None] = [None] * (max([*names.values(), *special.values()]) + 1)
    try:
        for token, data in zip(map(names.__getitem__, plain), many_from_symbols(plain), strict=True):
            tokens[token] = data
    except VocabularyError as error:
        raise VocabularyError(error.what, where=where, expected=error.expected) from None
    for name, token in special.items():
        if tokens[token] is not None:
            raise VocabularyError(f"the added token {name!r} has id {token}, which another token has", where=where)
        tokens[token] = name.encode("utf-8")
    return tokens
