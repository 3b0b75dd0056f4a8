"""tiktoken and tokenizers over GPT-2's own files, built by their own readers."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from labkit.tokenizer.files import find_gpt2

PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


@cache
def tiktoken_gpt2() -> tiktoken.Encoding:
    """GPT-2 as tiktoken reads it from vocab.bpe and encoder.json."""
    vocab, merges = find_gpt2()
    ranks = data_gym_to_mergeable_bpe_ranks(str(merges), str(vocab))
    return tiktoken.Encoding(
        "gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256}, explicit_n_vocab=50257
    )


def byte_level(vocab: Path, merges: Path) -> Tokenizer:
    """A byte-level BPE as tokenizers reads it from two files."""
    peer = Tokenizer(BPE.from_file(str(vocab), str(merges)))
    peer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    return peer


@cache
def tokenizers_gpt2() -> Callable[[str], list[int]]:
    """GPT-2 as tokenizers reads it."""
    peer = byte_level(*find_gpt2())
    return lambda text: peer.encode(text, add_special_tokens=False).ids
