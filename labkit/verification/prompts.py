"""texts or ids -> the prompts of a verification, encoded with the folder's own tokenizer and checked for room."""

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from labkit.config import GPT2Config
from labkit.errors import ArgumentError, ArgumentTypeError, LabkitError, MissingFileError, OutOfRangeError
from labkit.outside import shown, shown_number, shown_value
from labkit.tokenizer import Tokenizer

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
    folder: Path, config: GPT2Config, prompts: Sequence[str] | None, ids: Sequence[Sequence[int]] | None
) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """The prompts to run and notes on how they were chosen; texts need the folder's tokenizer.

    Raises ``ArgumentError`` where both are given or one is empty, ``ArgumentTypeError`` for what are no texts or no rows
    of whole numbers, ``OutOfRangeError`` for an id beyond the vocabulary.
    """
    if prompts is not None and ids is not None:
        raise ArgumentError("prompts and ids were both given", fix="give one of them")
    if ids is not None:
        return _usable(tuple(Prompt(text=None, ids=row) for row in _rows(ids)), config), ()
    if prompts is not None:
        prompts = _texts(prompts)
    tokenizer = _tokenizer(folder, config)
    if tokenizer is None:
        if prompts is not None:
            raise MissingFileError(
                "no tokenizer files, so a text cannot be encoded", where=folder, fix="give --ids instead"
            )
        generator = torch.Generator().manual_seed(0)
        count = min(24, config.n_positions)
        row = torch.randint(config.vocab_size, (count,), generator=generator).tolist()
        return (Prompt(text=None, ids=tuple(row)),), ("no tokenizer files: ids drawn at random (seed 0) were used",)
    texts = PROMPTS if prompts is None else prompts
    chosen = tuple(Prompt(text=text, ids=tuple(tokenizer.encode(text))) for text in texts)
    if prompts is None:
        chosen = tuple(replace(prompt, ids=prompt.ids[: config.n_positions]) for prompt in chosen)
    return _usable(chosen, config), ()


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
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError("not a whole number", where=where, got=shown_value(value))
    if value < 0:
        raise ArgumentError(f"the number of {what} is negative", got=value)


def check_room(prompts: tuple[Prompt, ...], config: GPT2Config, tokens: int) -> None:
    """Raise where a prompt is longer than the model's context, or ``tokens`` is no number of tokens."""
    require_count(tokens, "tokens", "greedy tokens")
    for number, prompt in enumerate(prompts, 1):
        if len(prompt.ids) > config.n_positions:
            raise ArgumentError(
                f"prompt {number} is longer than the model's context",
                expected=f"at most n_positions = {config.n_positions} tokens",
                got=f"{len(prompt.ids)} tokens",
                fix="shorten it",
            )
