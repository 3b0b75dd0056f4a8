"""Ours beside tiktoken and tokenizers on the user's own text, and any difference shrunk to the smallest text that has it.

In: a text. Out: one report for each peer. The peers are built from the same vocabulary and imported only here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from labkit.errors import ArgumentError
from labkit.tokenizer.blocks import blocks_of
from labkit.tokenizer.files import TOKENIZER_JSON, find_pair
from labkit.tokenizer.save import names_of, pairs_of
from labkit.tokenizer.tokenizer import Tokenizer
from labkit.tokenizer.vocabulary import Vocabulary
from labkit.words import counted

Peer = Literal["tiktoken", "tokenizers"]
Encode = Callable[[str], list[int]]
PEERS: Final[tuple[Peer, ...]] = ("tiktoken", "tokenizers")
BLOCK: Final = 10_000  # characters compared at once: what differs is then quickly shrunk
# tiktoken's own form of GPT-2's pattern (tiktoken_ext/openai_public.py)
PATTERN: Final = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


@dataclass(frozen=True, slots=True)
class Difference:
    """The smallest text found on which two tokenizers differ; ``start`` is where its block begins in the text."""

    text: str
    start: int
    ours: tuple[int, ...]
    theirs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parity:
    """Ours against one peer: how much was compared, and the first difference if there is one."""

    peer: Peer
    characters: int
    tokens: int
    difference: Difference | None

    @property
    def return_code(self) -> int:
        return 0 if self.difference is None else 1

    def __str__(self) -> str:
        compared = f"{self.peer}: {counted(self.characters, 'character')}, {counted(self.tokens, 'token')}"
        if self.difference is None:
            return f"{compared}, same ids"
        d = self.difference
        return f"{compared}, differs: {d.text!r} is {list(d.ours)} here and {list(d.theirs)} there"


def compare_with_peer(tokenizer: Tokenizer, text: str, peer: Peer, *, encode: Encode | None = None) -> Parity:
    """Compare on a text, block by block, as far as the first difference.

    ``encode``: the peer ready made (default: built from the same vocabulary).
    Raises ArgumentError where the peer is not installed or cannot hold the vocabulary.
    """
    theirs = encode or {"tiktoken": tiktoken_encode, "tokenizers": tokenizers_encode}[peer](tokenizer.vocabulary)
    done = tokens = 0
    for block in blocks_of(text, size=BLOCK):
        ids = tokenizer.encode(block)
        tokens += len(ids)
        if ids != theirs(block):
            small = shrink(block, lambda part: tokenizer.encode(part) != theirs(part))
            found = Difference(small, done, tuple(tokenizer.encode(small)), tuple(theirs(small)))
            return Parity(peer, done + len(block), tokens, found)
        done += len(block)
    return Parity(peer, done, tokens, None)


def shrink(text: str, differs: Callable[[str], bool]) -> str:
    """A smallest part of a text that still differs: no character of it can be left out.

    >>> shrink("one two three", lambda part: "o" in part and "r" in part)
    'or'
    """
    size = len(text) // 2
    while size:
        start = 0
        while start < len(text):
            shorter = text[:start] + text[start + size :]
            if differs(shorter):
                text = shorter
            else:
                start += size
        size //= 2
    return text


def tiktoken_encode(vocabulary: Vocabulary) -> Encode:
    """tiktoken's ``encode_ordinary`` over the same vocabulary, where ids follow ranks as it needs."""
    try:
        import tiktoken
    except ImportError:
        raise ArgumentError("tiktoken is not installed", fix="pip install tiktoken") from None
    if list(vocabulary.made) != sorted(vocabulary.made):
        raise ArgumentError("tiktoken takes ids as ranks, and this vocabulary's ids do not follow its merges")
    added = {token.id: token.content for token in vocabulary.added}
    ranks = {data: token for token, data in enumerate(vocabulary.tokens) if data is not None and token not in added}
    specials = {name: token for token, name in added.items()}
    encoding = tiktoken.Encoding("parity", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=specials)
    encode: Encode = encoding.encode_ordinary
    return encode


def tokenizers_encode(vocabulary: Vocabulary) -> Encode:
    """tokenizers' BPE with its byte-level split over the same vocabulary, without special tokens."""
    from tokenizers import Tokenizer as Peer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    peer = Peer(BPE(vocab=names_of(vocabulary), merges=pairs_of(vocabulary)))
    peer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    return _plain(peer)


def tokenizers_encode_files(folder: Path) -> Encode:
    """The same by tokenizers' own reading of a folder's tokenizer.json, or of its vocab.json and merges.txt.

    Raises ArgumentError where tokenizers cannot read them.
    """
    from tokenizers import Tokenizer as Peer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    whole, pair = folder / TOKENIZER_JSON, find_pair(folder)
    try:
        if pair is not None and not whole.is_file():
            peer = Peer(BPE.from_file(*map(str, pair)))
            peer.pre_tokenizer = ByteLevel(add_prefix_space=False)
        else:
            stored = Peer.from_file(str(whole))
            peer = Peer(stored.model)  # without its added tokens, which are no matter of merges
            peer.pre_tokenizer = stored.pre_tokenizer
    except Exception as error:  # the Rust side raises nothing narrower
        raise ArgumentError("tokenizers cannot read the vocabulary", where=folder, got=str(error)) from error
    return _plain(peer)


def _plain(peer: Any) -> Encode:
    def encode(text: str) -> list[int]:
        ids: list[int] = peer.encode(text, add_special_tokens=False).ids
        return ids

    return encode


def compare_with_peers(tokenizer: Tokenizer, text: str, peers: Sequence[Peer] = PEERS) -> tuple[Parity, ...]:
    """``compare_with_peer`` for each."""
    return tuple(compare_with_peer(tokenizer, text, peer) for peer in peers)
