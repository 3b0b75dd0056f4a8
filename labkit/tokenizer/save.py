"""Writing a vocabulary: vocab.json, merges.txt and tokenizer.json, as tokenizers and transformers read them.

In: a vocabulary. Out: three files in a folder.
"""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from labkit.atomic import appearing, replacing
from labkit.tokenizer.alphabet import to_symbols
from labkit.tokenizer.vocabulary import Vocabulary

HEADER = "#version: 0.2"


def save_vocabulary(vocabulary: Vocabulary, folder: Path) -> None:
    """Write the three files: a new folder appears whole or not at all, in an old one each file is replaced as a whole.

    Raises MissingFileError where the folder around it is not there, FileAccessError where writing fails.
    """
    names, pairs = names_of(vocabulary), pairs_of(vocabulary)
    lines = [HEADER, *(f"{left} {right}" for left, right in pairs)]
    texts = {
        "vocab.json": json.dumps(names, ensure_ascii=False),
        "merges.txt": "\n".join(lines) + "\n",
        "tokenizer.json": json.dumps(tokenizer_json(vocabulary, names, pairs), ensure_ascii=False, indent=2),
    }
    with nullcontext(folder) if folder.is_dir() else appearing(folder) as place:
        for name, text in texts.items():
            with replacing(place / name) as file:
                file.write(text.encode("utf-8"))


def names_of(vocabulary: Vocabulary) -> dict[str, int]:
    """Names with their ids, in order of id."""
    added = {token.id: token.content for token in vocabulary.added}
    listed = enumerate(vocabulary.tokens)
    return {added.get(token) or to_symbols(data): token for token, data in listed if data is not None}


def pairs_of(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """The merges in symbols, in order of rank."""
    symbols = ["" if data is None else to_symbols(data) for data in vocabulary.tokens]
    return [(symbols[a], symbols[b]) for a, b in zip(vocabulary.left, vocabulary.right, strict=True)]


def tokenizer_json(vocabulary: Vocabulary, names: dict[str, int], pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """The fields of tokenizer.json."""
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = ("special", "lstrip", "rstrip", "normalized")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": token.id, "content": token.content, "single_word": False}
            | {flag: getattr(token, flag) for flag in flags}
            for token in vocabulary.added
        ],
        "normalizer": None,
        "pre_tokenizer": split,
        "post_processor": split | {"trim_offsets": False},
        "decoder": split,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": names,
            "merges": [list(pair) for pair in pairs],
        },
    }
