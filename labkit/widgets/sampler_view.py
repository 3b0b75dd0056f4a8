"""logits, settings -> the view record of the sampler: the distribution after each step, and its static twin."""

from html import escape
from typing import TypedDict

import torch
from torch import Tensor

from labkit.generation.sampling import keep_min_p, keep_top_k, keep_top_p
from labkit.report.tokenizer import visible
from labkit.tokenizer import Tokenizer

SHOWN = 16
"""Tokens on the page, the likeliest first."""
STEPS = ("model", "temperature", "top_k", "top_p", "min_p")


class SamplerSettings(TypedDict):
    """What the sliders say; ``top_k`` 0 and ``top_p`` 1 and ``min_p`` 0 cut nothing."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


class TokenRow(TypedDict):
    """One token and its probability after each step, in parts of a million."""

    id: int
    label: str
    parts: list[int]


class SamplerView(TypedDict):
    """The likeliest tokens, and for each step how many tokens are left and the entropy of the distribution."""

    steps: list[str]
    rows: list[TokenRow]
    kept: list[int]
    entropy: list[float]
    """In nats."""
    rest: list[int]
    """Probability of all tokens not shown, in parts of a million."""


def distributions(logits: Tensor, settings: SamplerSettings) -> list[Tensor]:
    """The probabilities [vocab] after each of ``STEPS``, in the order in which generation takes them.

    >>> flat = SamplerSettings(temperature=1.0, top_k=2, top_p=1.0, min_p=0.0)
    >>> [round(p, 6) for p in distributions(torch.tensor([4.0, 2.0, 2.0]).log(), flat)[2].tolist()]
    [0.5, 0.25, 0.25]
    """
    row = logits.cpu().double()  # [vocab]
    found = [row.softmax(-1)]
    row = row / settings["temperature"]  # [vocab]
    found.append(row.softmax(-1))
    row = keep_top_k(row, settings["top_k"]) if settings["top_k"] > 0 else row  # [vocab]
    found.append(row.softmax(-1))
    row = keep_top_p(row, settings["top_p"]) if settings["top_p"] < 1 else row  # [vocab]
    found.append(row.softmax(-1))
    row = keep_min_p(row, settings["min_p"]) if settings["min_p"] > 0 else row  # [vocab]
    found.append(row.softmax(-1))
    return found


def sampler_view(logits: Tensor, settings: SamplerSettings, tokenizer: Tokenizer) -> SamplerView:
    """What the page shows of one position's logits [vocab]."""
    steps = distributions(logits, settings)
    ids = torch.argsort(logits, descending=True, stable=True)[:SHOWN].tolist()
    rows = [
        TokenRow(
            id=token,
            label=visible(tokenizer.token_bytes(token)),
            parts=[round(float(step[token]) * 1e6) for step in steps],
        )
        for token in ids
    ]
    return SamplerView(
        steps=list(STEPS),
        rows=rows,
        kept=[int((step > 0).sum()) for step in steps],
        entropy=[round(float(torch.special.entr(step).sum()), 3) for step in steps],
        rest=[round((1 - float(step[ids].sum())) * 1e6) for step in steps],
    )


def sampler_twin(view: SamplerView) -> str:
    """The distribution after each step as a table, in percent."""
    names = "".join(f'<th scope="col">{escape(step)}</th>' for step in view["steps"])
    rows = "".join(
        f'<tr><th scope="row">{escape(row["label"])}</th>{_cells(row["parts"])}</tr>' for row in view["rows"]
    )
    rest = f'<tr><th scope="row">all others</th>{_cells(view["rest"])}</tr>'
    kept = "".join(f"<td>{count}</td>" for count in view["kept"])
    return (
        "<table><caption>Probability of the next token after each step, in percent</caption>"
        f'<thead><tr><th scope="col">token</th>{names}</tr></thead><tbody>{rows}{rest}'
        f'<tr><th scope="row">tokens left</th>{kept}</tr></tbody></table>'
    )


def _cells(parts: list[int]) -> str:
    return "".join(f"<td>{part / 1e4:.0f}</td>" if part else "<td>0, cut</td>" for part in parts)
