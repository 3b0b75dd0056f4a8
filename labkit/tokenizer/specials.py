"""Special tokens: finding added tokens in a text, in Hugging Face's meaning and in tiktoken's.

In: a text and what may be found. Out: stretches of plain text and ids, in order. GPT-2 has one, ``<|endoftext|>``.
The plain stretches are split each for itself: a space before a special token stays a lone space.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from labkit.errors import ArgumentTypeError, TextError, UnknownNameError
from labkit.tokenizer.classes import BLANK, SPACE, class_table
from labkit.tokenizer.vocabulary import AddedToken

SpecialTokens = Literal["plain", "huggingface", "tiktoken"] | Collection[str]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a text: the token that it is, or plain text where ``token`` is None."""

    start: int
    end: int
    token: AddedToken | None = None


def find_special(text: str, added: Sequence[AddedToken], mode: SpecialTokens) -> list[Stretch]:
    """The stretches of a text under a meaning of special tokens.

    - ``"plain"``: names are text like any other (tiktoken's ``encode_ordinary``).
    - ``"huggingface"``: every added token is found, leftmost and longest first, white space around it taken where its
      lstrip or rstrip says so (tokenizers, and transformers' default).
    - a collection of names: those become ids, any other special token in the text is an error (tiktoken's
      ``allowed_special``); ``"tiktoken"`` allows none (tiktoken's default).

    Raises UnknownNameError for a name that is no special token, TextError for one that is not allowed.
    """
    given: object = mode
    if not isinstance(given, Iterable):
        modes = '"plain", "huggingface", "tiktoken" or a set of names'
        raise ArgumentTypeError(
            "no way of treating special tokens", where="special_tokens", expected=modes, got=repr(mode)
        )
    if mode == "plain" or not text:
        return [Stretch(0, len(text))] if text else []
    if mode == "huggingface":
        exact = [token for token in added if not token.normalized]
        late = [token for token in added if token.normalized]  # found after the others, in what they left
        first = _cut(text, [Stretch(0, len(text))], exact, strip=True)
        return _cut(text, first, late, strip=True)
    names = () if mode == "tiktoken" else (mode,) if isinstance(mode, str) else tuple(mode)
    by_name = {token.content: token for token in added}
    for name in names:
        if not isinstance(name, str) or name not in by_name:
            raise UnknownNameError.near("special token", name, by_name)
    _refuse_others(text, [token for token in added if token.special and token.content not in names])
    return _cut(text, [Stretch(0, len(text))], [by_name[name] for name in names], strip=False)


def _refuse_others(text: str, others: Sequence[AddedToken]) -> None:
    pattern = _pattern(others)
    if pattern and (match := pattern.search(text)):
        raise TextError(
            f"the text holds the special token {match.group()!r}, which is not allowed",
            where=f"character {match.start()}",
            fix='allow it by name, or take it as text with special_tokens="plain"',
        )


def _cut(text: str, stretches: Sequence[Stretch], tokens: Sequence[AddedToken], *, strip: bool) -> list[Stretch]:
    """Cut the plain stretches again where one of the tokens stands."""
    pattern = _pattern(tokens)
    if pattern is None:
        return list(stretches)
    by_name = {token.content: token for token in tokens}
    out: list[Stretch] = []
    for stretch in stretches:
        if stretch.token is not None:
            out.append(stretch)
            continue
        done = stretch.start
        for match in pattern.finditer(text, stretch.start, stretch.end):
            token = by_name[match.group()]
            start, end = match.span()
            if strip and token.lstrip:
                start = max(done, space_before(text, start, stretch.start))
            if strip and token.rstrip:
                end = _space_after(text, end, stretch.end)
            if done < start:
                out.append(Stretch(done, start))
            out.append(Stretch(start, end, token))
            done = end
        if done < stretch.end:
            out.append(Stretch(done, stretch.end))
    return out


def _pattern(tokens: Sequence[AddedToken]) -> re.Pattern[str] | None:
    longest_first = sorted((token.content for token in tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _is_space(character: str) -> bool:
    return bool(class_table()[ord(character)] in (SPACE, BLANK))


def space_before(text: str, place: int, stop: int) -> int:
    """Where the white space that ends at ``place`` begins, not before ``stop``."""
    while place > stop and _is_space(text[place - 1]):
        place -= 1
    return place


def _space_after(text: str, place: int, stop: int) -> int:
    while place < stop and _is_space(text[place]):
        place += 1
    return place
