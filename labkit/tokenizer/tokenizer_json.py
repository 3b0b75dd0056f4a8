"""tokenizer.json, as tokenizers and transformers 5 save it: honoured where it is GPT-2's kind, else refused by name.

In: its JSON object. Out: names, merges, added tokens, notes.
"""

from collections.abc import Mapping
from typing import Any

from labkit.errors import VocabularyError
from labkit.tokenizer.vocabulary import AddedToken, Merges

NEUTRAL: Mapping[str, tuple[object, ...]] = {  # fields of the model, and the values under which they change nothing
    "dropout": (None, 0, 0.0),
    "unk_token": (None, "", "<|endoftext|>"),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "fuse_unk": (None, False),
    "byte_fallback": (None, False),
    "ignore_merges": (None, False),
}

Parts = tuple[dict[str, int], Merges, list[AddedToken], list[str]]


def parse_tokenizer_json(fields: Mapping[str, Any], where: str) -> Parts:
    """Names, merges, added tokens and notes.

    Raises VocabularyError naming the field for a model that is not BPE, a split that is not GPT-2's, a normalizer,
    truncation, padding, an added token that must stand alone as a word.
    """
    model = fields.get("model")
    if not isinstance(model, dict):
        raise VocabularyError("has no model", where=where, expected="a model of type BPE")
    kind = model.get("type", "BPE")  # files of the first versions do not name it
    if kind != "BPE":
        raise VocabularyError("the model is of another kind", where=where, expected="BPE", got=kind)
    for name, neutral in NEUTRAL.items():
        if model.get(name) not in neutral:
            raise VocabularyError(f"model.{name} is not supported", where=where, got=repr(model[name]))
    _check_split(fields.get("pre_tokenizer"), where)
    if fields.get("normalizer") is not None:
        raise VocabularyError("a normalizer is not supported", where=where, got=_type_of(fields["normalizer"]))
    names = model.get("vocab")
    if not isinstance(names, dict):
        raise VocabularyError("model.vocab is not an object", where=where, got=type(names).__name__)
    notes = _notes_on_the_rest(fields)
    return names, _merges(model.get("merges"), where), _added(fields.get("added_tokens") or [], where), notes


def _check_split(split: object, where: str) -> None:
    if _type_of(split) != "ByteLevel" or not isinstance(split, dict):
        raise VocabularyError(
            "the pre_tokenizer is not GPT-2's", where=where, expected="ByteLevel", got=_type_of(split)
        )
    if split.get("add_prefix_space"):
        raise VocabularyError("pre_tokenizer.add_prefix_space is not supported", where=where, expected=False, got=True)
    if split.get("use_regex") is False:
        raise VocabularyError("pre_tokenizer.use_regex is off: no split", where=where, expected=True, got=False)


def _merges(listed: object, where: str) -> Merges:
    if not isinstance(listed, list):
        raise VocabularyError("model.merges is not a list", where=where, got=type(listed).__name__)
    left, right = [], []
    for rank, entry in enumerate(listed):
        pair = entry.split(" ") if isinstance(entry, str) else entry
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(s, str) and s for s in pair):
            raise VocabularyError("is not a pair", where=f"{where}, merge {rank}", got=repr(entry))
        left.append(pair[0])
        right.append(pair[1])
    return Merges(left, right, None, where)


def _added(listed: object, where: str) -> list[AddedToken]:
    if not isinstance(listed, list):
        raise VocabularyError("added_tokens is not a list", where=where, got=type(listed).__name__)
    tokens = []
    for entry in listed:
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str) or not content or type(entry.get("id")) is not int:
            raise VocabularyError("an added token has no content or no id", where=where, got=repr(entry))
        if entry.get("single_word"):
            raise VocabularyError(f"the added token {content!r} is a single_word one", where=where, expected=False)
        flags = {name: bool(entry.get(name)) for name in ("special", "lstrip", "rstrip", "normalized")}
        tokens.append(AddedToken(content, entry["id"], **flags))
    return tokens


def _notes_on_the_rest(fields: Mapping[str, Any]) -> list[str]:
    notes = [
        f"tokenizer.json: {name} is set and was left out" for name in ("truncation", "padding") if fields.get(name)
    ]
    after = _type_of(fields.get("post_processor"))
    if after not in ("none", "ByteLevel"):
        notes.append(f"tokenizer.json: the post_processor ({after}) was left out: no ids are added around a text")
    return notes


def _type_of(part: object) -> str:
    return str(part.get("type")) if isinstance(part, dict) else "none" if part is None else type(part).__name__
