"""Greedy text of two engines, token by token; at the first divergence the margin decides.

Where two engines pick different tokens, the margin between the truth's top two logits is held against the error that
rounding explains at that position. A margin above it is *certified*: no rounding explains the choice. A margin
within it is a *coin flip*: both choices are right. A candidate whose logits are not finite has no text: it is *not run*.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch


@dataclass(frozen=True, kw_only=True)
class TokenResult:
    """Greedy continuation of one prompt by the candidate and by transformers."""

    actual: tuple[int, ...]
    expected: tuple[int, ...]
    verdict: Literal["same", "coin flip", "differs", "not run"]
    parted_at: int | None = None
    margin: float | None = None
    """Top logit minus the candidate's choice in the truth, at the position where the two part."""
    explained: float | None = None
    """The largest logit difference that rounding explains there."""
    reason: str | None = None
    """Why the candidate could not be run: where its numbers are not finite."""

    @classmethod
    def not_run(cls, reason: str) -> "TokenResult":
        """No token can be chosen from logits that are not finite."""
        return cls(actual=(), expected=(), verdict="not run", reason=reason)


def greedy_reference(model: Any, ids: Sequence[int], count: int) -> tuple[int, ...]:
    """``count`` greedy tokens by transformers' own ``generate``, with no stop token."""
    prompt = torch.tensor([list(ids)])  # [batch, pos]
    if count < 1:
        return ()
    with torch.inference_mode():
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=count,
            min_new_tokens=count,
            eos_token_id=None,
            pad_token_id=0,
        )
    return tuple(int(i) for i in output[0, len(ids) :])


def compare_tokens(
    actual: Sequence[int], expected: Sequence[int], prompt: Sequence[int], truth: Any, explained: float
) -> TokenResult:
    """Hold two continuations of ``prompt`` against each other; ``truth`` is transformers' float64 model.

    ``explained``: the largest logit error that rounding explains, in logits.
    """
    parted = next((i for i, pair in enumerate(zip(actual, expected, strict=False)) if pair[0] != pair[1]), None)
    if parted is None:
        return TokenResult(actual=tuple(actual), expected=tuple(expected), verdict="same")
    so_far = [*prompt, *expected[:parted]]
    with torch.inference_mode():
        logits = truth(input_ids=torch.tensor([so_far]), use_cache=False).logits[0, -1]  # [vocab]
    margin = float(logits.max() - logits[actual[parted]])
    return TokenResult(
        actual=tuple(actual),
        expected=tuple(expected),
        verdict="coin flip" if margin <= 2 * explained else "differs",
        parted_at=parted,
        margin=margin,
        explained=explained,
    )
