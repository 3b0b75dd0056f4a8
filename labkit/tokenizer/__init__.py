"""Byte-level BPE as GPT-2 has it: text to pieces, symbols, merges and ids, and back.

    text -> pieces (split) -> bytes -> symbols -> merges by rank (merge) -> ids -> bytes -> text (decode)

Nothing here imports torch.
"""

from labkit.tokenizer.alphabet import BYTE_OF_SYMBOL, SYMBOL_OF_BYTE, from_symbols, to_symbols
from labkit.tokenizer.decode import IncrementalDecoder
from labkit.tokenizer.merge import merge, merge_steps, merge_tree
from labkit.tokenizer.records import Candidate, Encoding, MergeNode, MergeStep, Piece, Token
from labkit.tokenizer.split import split
from labkit.tokenizer.tokenizer import Tokenizer
from labkit.tokenizer.vocabulary import AddedToken, Vocabulary

__all__ = [
    "BYTE_OF_SYMBOL",
    "SYMBOL_OF_BYTE",
    "AddedToken",
    "Candidate",
    "Encoding",
    "IncrementalDecoder",
    "MergeNode",
    "MergeStep",
    "Piece",
    "Token",
    "Tokenizer",
    "Vocabulary",
    "from_symbols",
    "merge",
    "merge_steps",
    "merge_tree",
    "split",
    "to_symbols",
]
