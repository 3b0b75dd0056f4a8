"""Prompts to try mistakes on, of random ids: rows, the shorter first, then a batch with padding."""

from collections.abc import Iterator

import torch

from labkit.config import GPT2Config
from labkit.verification.chain import Inputs, left_padded

LENGTHS = (2, 3, 4, 8, 16, 65)
"""Tokens of the rows; positions that start again at 64 need more than 64."""
PADDED = (8, 3)
"""Tokens of the two rows of the batch."""


def trial_prompts(config: GPT2Config) -> Iterator[tuple[str, Inputs]]:
    """Each prompt in words, and its inputs; as many as the model's context takes.

    >>> [text for text, _ in trial_prompts(GPT2Config(n_positions=4))]
    ['2 tokens', '3 tokens', '4 tokens', 'a batch of two prompts with padding on the left']
    """
    generator = torch.Generator().manual_seed(0)
    row = torch.randint(config.vocab_size, (min(max(LENGTHS), config.n_positions),), generator=generator).tolist()
    for length in LENGTHS:
        if length <= len(row):
            yield f"{length} tokens", left_padded([row[:length]])
    yield "a batch of two prompts with padding on the left", left_padded([row[:length] for length in PADDED])
