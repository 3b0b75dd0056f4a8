"""texts or ids -> the prompts of a verification, encoded with the folder's own tokenizer and checked for room."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from labkit.config import GPT2Config
from labkit.errors import ArgumentError, LabkitError, MissingFileError, OutOfRangeError
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
    """The prompts to run and notes on how they were chosen; texts need the folder's tokenizer."""
    if ids is not None:
        chosen = tuple(Prompt(text=None, ids=tuple(int(i) for i in row)) for row in ids)
        return _not_empty(chosen), ()
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
    texts = PROMPTS if prompts is None else tuple(prompts)
    chosen = tuple(Prompt(text=text, ids=tuple(tokenizer.encode(text))) for text in texts)
    if prompts is None:
        chosen = tuple(replace(prompt, ids=prompt.ids[: config.n_positions]) for prompt in chosen)
    return _not_empty(chosen), ()


def _not_empty(prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
    if not prompts:
        raise ArgumentError("there is no prompt", fix="give at least one")
    for number, prompt in enumerate(prompts, 1):
        if not prompt.ids:
            raise ArgumentError(
                f"prompt {number} has no tokens", got=prompt.describe(), fix="give a text with a character"
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


def check_room(prompts: tuple[Prompt, ...], config: GPT2Config, tokens: int) -> None:
    if tokens < 0:
        raise ArgumentError("the number of greedy tokens is negative", got=tokens)
    for number, prompt in enumerate(prompts, 1):
        if len(prompt.ids) > config.n_positions:
            raise ArgumentError(
                f"prompt {number} is longer than the model's context",
                expected=f"at most n_positions = {config.n_positions} tokens",
                got=f"{len(prompt.ids)} tokens",
                fix="shorten it",
            )
        for place, i in enumerate(prompt.ids):
            if not 0 <= i < config.vocab_size:
                raise OutOfRangeError(
                    f"prompt {number}: id {place} is beyond the vocabulary",
                    expected=f"0 to {config.vocab_size - 1}",
                    got=i,
                    fix="encode the text with this checkpoint's own tokenizer",
                )
