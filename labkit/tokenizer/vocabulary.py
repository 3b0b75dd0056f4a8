"""What the files of a byte-level BPE mean, checked once: ids, bytes, and the rank of every merge.

In: names with their ids and an ordered list of merges, as files.py reads them. Out: one ``Vocabulary``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from labkit.errors import VocabularyError
from labkit.tokenizer.alphabet import SYMBOL_OF_BYTE, from_symbols, many_from_symbols

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
class Vocabulary:
    """Ids to bytes, and pairs of ids to ranks.

    ``tokens[id]`` are the token's bytes (None where no token has the id), ``byte_ids[byte]`` the id of a single byte
    (-1 where there is none), ``rank_of[pair_key(left, right)]`` the rank of a merge, and ``left``, ``right``, ``made``
    give the ids that the merge of a rank joins and makes.
    """

    tokens: Sequence[bytes | None]
    byte_ids: tuple[int, ...]
    rank_of: Mapping[int, int]
    left: Sequence[int]
    right: Sequence[int]
    made: Sequence[int]
    lines: Sequence[int] | None
    added: tuple[AddedToken, ...]
    notes: tuple[str, ...]

    @property
    def size(self) -> int:
        """The number of rows an embedding needs: the highest id and one."""
        return len(self.tokens)

    def missing_bytes(self) -> tuple[int, ...]:
        return tuple(byte for byte, token in enumerate(self.byte_ids) if token < 0)


def pair_key(left: int, right: int) -> int:
    """Two ids in one integer.

    >>> hex(pair_key(0x1, 0x2))
    '0x100002'
    """
    return left << ID_BITS | right


def build_vocabulary(
    names: Mapping[str, int],
    merges: Merges,
    *,
    added: Iterable[AddedToken] = (),
    where: str = "vocab.json",
    notes: Iterable[str] = (),
) -> Vocabulary:
    """Check names and merges against each other, and turn names into bytes.

    Raises VocabularyError that names the file and the key or line for: an id that is not a whole number of at least
    0, two names with one id, a merge that joins or makes a token outside the vocabulary, a pair listed twice, a
    symbol outside the 256 of the alphabet.
    """
    said = list(notes)
    extra = tuple(added)
    _check_ids(names, where)
    left, right, made = _merge_ids(names, merges, where)
    keys = [a << ID_BITS | b for a, b in zip(left, right, strict=True)]
    rank_of = dict(zip(keys, range(len(keys)), strict=True))
    if len(rank_of) != len(keys):
        _refuse_repeated_pair(keys, merges)
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
    return Vocabulary(tokens, byte_ids, rank_of, left, right, made, merges.lines, extra, tuple(said))


def _check_ids(names: Mapping[str, int], where: str) -> None:
    if not names:
        raise VocabularyError("holds no token", where=where, expected="names with their ids")
    for name, token in names.items():
        if type(token) is not int or not 0 <= token <= MAXIMUM_ID:
            limits = f"a whole number from 0 to {MAXIMUM_ID}"
            raise VocabularyError(
                f"the id of token {name!r} is unusable", where=where, expected=limits, got=repr(token)
            )
    if len(set(names.values())) != len(names):
        owner: dict[int, str] = {}
        for name, token in names.items():
            if token in owner:
                raise VocabularyError(f"tokens {owner[token]!r} and {name!r} both have id {token}", where=where)
            owner[token] = name


def _merge_ids(names: Mapping[str, int], merges: Merges, where: str) -> tuple[list[int], list[int], list[int]]:
    try:
        left = [names[symbol] for symbol in merges.left]
        right = [names[symbol] for symbol in merges.right]
        made = [names[a + b] for a, b in zip(merges.left, merges.right, strict=True)]
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
    known = set(made)
    bytes_ = set(SYMBOL_OF_BYTE)
    return [name for name, token in names.items() if token not in known and name not in bytes_ and name not in listed]


def _token_bytes(names: Mapping[str, int], added: Sequence[AddedToken], where: str) -> list[bytes | None]:
    special = {token.content: token.id for token in added}
    plain = [name for name in names if name not in special]
    tokens: list[bytes | None] = [None] * (max(max(names.values()), *special.values(), 0) + 1)
    try:
        for name, data in zip(plain, many_from_symbols(plain), strict=True):
            tokens[names[name]] = data
    except VocabularyError as error:
        raise VocabularyError(error.what, where=where, expected=error.expected) from None
    for name, token in special.items():
        if tokens[token] is not None:
            raise VocabularyError(f"the added token {name!r} has id {token}, which another token has", where=where)
        tokens[token] = name.encode("utf-8")
    return tokens
