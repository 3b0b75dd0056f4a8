"""texts or ids -> the prompts of a verification, encoded with the folder's own tokenizer and checked for room."""

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from labkit.config import GPT2Config
from labkit.errors import ArgumentError, ArgumentTypeError, LabkitError, MissingFileError, OutOfRangeError
from labkit.outside import require_whole, shown, shown_number, shown_value
from labkit.tokenizer import Tokenizer
from labkit.words import counted

PROMPTS = (
    "It was a bright cold morning, and the whole family had come down to the door to see the carriage go.",
    "“I am sure,” said he, “that you know very little of the matter",
)
"""What is run where no prompt is given: two sentences, so that attention has something to attend to."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt: its text where there is one, and its ids."""

    text: str | None
    ids: tuple[int, ...]

    def describe(self) -> str:
        """The text in quotes, or the ids."""
        return repr(self.text) if self.text is not None else f"ids {list(self.ids)}"


def choose_prompts(
    folder: Path,
    config: GPT2Config,
    prompts: Sequence[str] | None,
    ids: Sequence[Sequence[int]] | None,
    *,
    tokens: int = 0,
) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """The prompts to run and notes on how they were chosen; texts need the folder's tokenizer.

    Where neither is given, prompts that every model takes: they are cut to its context, with room for ``tokens`` more in
    half of it at most, and to its vocabulary.
    Raises ``ArgumentError`` where both are given or one is empty, ``ArgumentTypeError`` for what are no texts or no rows
    of whole numbers, ``OutOfRangeError`` for an id beyond the vocabulary.
    """
    if prompts is not None and ids is not None:
        raise ArgumentError("prompts and ids were both given", fix="give one of them")
    require_count(tokens, "tokens", "greedy tokens")
    if ids is not None:
        return _usable(tuple(Prompt(text=None, ids=row) for row in _rows(ids)), config), ()
    if prompts is not None:
        prompts = _texts(prompts)
    tokenizer = _tokenizer(folder, config)
    if tokenizer is not None and prompts is not None:
        return _usable(tuple(Prompt(text=text, ids=tuple(tokenizer.encode(text))) for text in prompts), config), ()
    if prompts is not None:
        raise MissingFileError(
            "no tokenizer files, so a text cannot be encoded", where=folder, fix="give --ids instead"
        )
    return _default_prompts(tokenizer, config, tokens)


def _default_prompts(
    tokenizer: Tokenizer | None, config: GPT2Config, tokens: int
) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """``PROMPTS``, cut to the model's context; ids drawn at random where the model cannot take the texts' ids."""
    limit = max(config.n_positions + 1 - tokens, (config.n_positions + 1) // 2)
    encoded = [] if tokenizer is None else [tuple(tokenizer.encode(text)) for text in PROMPTS]
    if encoded and max(map(max, encoded)) < config.vocab_size:
        notes = tuple(
            f"prompt {number} was cut to its first {limit} of {len(ids)} tokens (n_positions = {config.n_positions})"
            for number, ids in enumerate(encoded, 1)
            if len(ids) > limit
        )
        texts = zip(PROMPTS, encoded, strict=True)
        return tuple(Prompt(text=text if len(ids) <= limit else None, ids=ids[:limit]) for text, ids in texts), notes
    generator = torch.Generator().manual_seed(0)
    row = torch.randint(config.vocab_size, (min(24, limit),), generator=generator).tolist()
    why = f"the tokenizer's ids go beyond vocab_size = {config.vocab_size}" if encoded else "no tokenizer files"
    return (Prompt(text=None, ids=tuple(row)),), (f"{why}: ids drawn at random (seed 0) were used",)


def _texts(prompts: object) -> tuple[str, ...]:
    """Several texts; one text by itself would be taken as a prompt a character."""
    listed = tuple(prompts) if isinstance(prompts, Iterable) and not isinstance(prompts, str | bytes) else None
    if listed is None or not all(isinstance(each, str) for each in listed):
        raise ArgumentTypeError("not a list of texts", where="prompts", expected='as in ["a text"]', got=shown(prompts))
    return listed


def _rows(ids: object) -> Iterator[tuple[int, ...]]:
    """Rows of ids, from lists, arrays or tensors [batch, pos]."""
    for row in _listed(ids):
        values = _listed(row)
        if any(isinstance(each, bool) or not isinstance(each, SupportsIndex) for each in values):
            raise _no_ids(row)
        yield tuple(operator.index(each) for each in values)


def _listed(values: object) -> Sequence[Any]:
    if isinstance(values, Tensor | np.ndarray):
        values = values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise _no_ids(values)
    return values


def _no_ids(got: object) -> ArgumentTypeError:
    return ArgumentTypeError(
        "not rows of whole numbers", where="ids", expected="as in [[5, 6, 7]], a row a prompt", got=shown_value(got)
    )


def _usable(prompts: tuple[Prompt, ...], config: GPT2Config) -> tuple[Prompt, ...]:
    """The prompts, each with a token and no id beyond the vocabulary."""
    if not prompts:
        raise ArgumentError("there is no prompt", fix="give at least one")
    for number, prompt in enumerate(prompts, 1):
        if not prompt.ids:
            raise ArgumentError(
                f"prompt {number} has no tokens", got=prompt.describe(), fix="give a text with a character"
            )
        for place, i in enumerate(prompt.ids):
            if not 0 <= i < config.vocab_size:
                raise OutOfRangeError(
                    f"prompt {number}: id {place} is beyond the vocabulary",
                    expected=f"0 to {config.vocab_size - 1}",
                    got=shown_number(i),
                    fix="encode the text with this checkpoint's own tokenizer",
                )
    return prompts


def _tokenizer(folder: Path, config: GPT2Config) -> Tokenizer | None:
    if (folder / "tokenizer.json").is_file() or (folder / "vocab.json").is_file():
        return Tokenizer.from_folder(folder)
    if config.vocab_size != GPT2Config.vocab_size:
        return None
    try:
        return Tokenizer.gpt2()
    except LabkitError:
        return None


def require_count(value: object, where: str, what: str) -> None:
    """Raise unless ``value``, a number of ``what``, is a whole number of at least 0."""
    if require_whole(value, where) < 0:
        raise ArgumentError(f"the number of {what} is negative", got=value)


def check_room(prompts: tuple[Prompt, ...], config: GPT2Config) -> None:
    """Raise where a prompt is longer than the model's context."""
    for number, prompt in enumerate(prompts, 1):
        if len(prompt.ids) > config.n_positions:
            raise ArgumentError(
                f"prompt {number} is longer than the model's context",
                expected=f"at most n_positions = {config.n_positions} tokens",
                got=f"{len(prompt.ids)} tokens",
                fix="shorten it",
            )


def room_for(prompts: Sequence[Prompt], config: GPT2Config, tokens: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """How many of ``tokens`` new ones fit after each prompt, and notes where not all do; the last is never read again."""
    counts = tuple(min(tokens, config.n_positions + 1 - len(prompt.ids)) for prompt in prompts)
    notes = tuple(
        f"prompt {number} leaves room for {counted(count, 'greedy token')} instead of {tokens} "
        f"(n_positions = {config.n_positions})"
        for number, count in enumerate(counts, 1)
        if count < tokens
    )
    return counts, notes
