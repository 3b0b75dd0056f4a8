"""Logits -> the next id: penalties and cuts in transformers' order, then the largest or a draw.

In: logits [batch, vocab] and what the rows hold so far. Out: one id a row. Each step is a function of a row's float32
logits and gives what the ``transformers`` logits processor of the same name gives (Holtzman et al. 2020 for top-p,
Fan et al. 2018 for top-k, Keskar et al. 2019 for the repetition penalty, Nguyen et al. 2024 for min-p).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.generation.settings import Settings


def penalize_repetition(logits: Tensor, seen: Sequence[int], penalty: float) -> Tensor:
    """Divide what is above 0 by the penalty, and multiply what is below, for every id seen in prompt or text.

    >>> penalize_repetition(torch.tensor([2.0, -2.0, 1.0]), [0, 1], 2.0).tolist()
    [1.0, -4.0, 1.0]
    """
    ids = torch.tensor(sorted(set(seen)), dtype=torch.long, device=logits.device)  # [ids]
    theirs = logits[ids]  # [ids]
    penalized = torch.where(theirs < 0, theirs * penalty, theirs / penalty)  # [ids]
    limits = torch.finfo(logits.dtype)
    return logits.index_put((ids,), penalized.clamp(limits.min, limits.max))  # [vocab]: an infinity draws nothing


def tempered(logits: Tensor, temperature: float) -> Tensor:
    """Divide by the temperature; where that overflows, the differences to the largest, which draw the same.

    >>> tempered(torch.tensor([1.0, 2.0]), 0.5).tolist(), tempered(torch.tensor([1.0, 2.0]), 1e-300).softmax(-1).tolist()
    ([2.0, 4.0], [0.0, 1.0])
    """
    divided = logits / temperature  # [vocab]
    if bool(torch.isfinite(divided.max())):
        return divided
    return (logits - logits.max()) / max(temperature, torch.finfo(logits.dtype).tiny)  # [vocab]


def forbid(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Make ids impossible."""
    return logits.index_fill(0, torch.tensor(ids, device=logits.device), -math.inf)  # [vocab]


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k largest, and all that equal the k-th.

    >>> keep_top_k(torch.tensor([1.0, 3.0, 2.0]), 2).tolist()
    [-inf, 3.0, 2.0]
    """
    least = torch.topk(logits, min(k, logits.shape[-1])).values[-1]  # []
    return logits.masked_fill(logits < least, -math.inf)  # [vocab]


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the fewest ids whose probabilities reach p together; at least one.

    >>> keep_top_p(torch.tensor([4.0, 2.0, 1.0]).log(), 0.7).exp().tolist()
    [4.0, 2.0, 0.0]
    """
    ascending, order = torch.sort(logits, descending=False)  # [vocab], [vocab]
    cut = ascending.softmax(-1).cumsum(-1) <= 1 - p  # [vocab]
    cut[-1:] = False
    return logits.masked_fill(cut.scatter(0, order, cut), -math.inf)  # [vocab]


def keep_min_p(logits: Tensor, p: float) -> Tensor:
    """Keep ids at least p times as likely as the likeliest.

    >>> keep_min_p(torch.tensor([4.0, 2.0, 1.0]).log(), 0.4).exp().tolist()
    [4.0, 2.0, 0.0]
    """
    probabilities = logits.softmax(-1)  # [vocab]
    return logits.masked_fill(probabilities < p * probabilities.max(), -math.inf)  # [vocab]


def processed(logits: Tensor, seen: Sequence[int], settings: Settings, *, new: int) -> Tensor:
    """One row's logits in float32 after everything that ``settings`` asks for, ``new`` tokens having come so far."""
    row = logits.float()  # [vocab]
    if settings.repetition_penalty != 1.0:
        row = penalize_repetition(row, seen, settings.repetition_penalty)
    if new < settings.min_tokens and settings.stop_ids:
        row = forbid(row, settings.stop_ids)
    if not settings.sampled:
        return row
    row = tempered(row, settings.temperature)  # [vocab]
    if settings.top_k is not None:
        row = keep_top_k(row, settings.top_k)
    if settings.top_p is not None and settings.top_p < 1:
        row = keep_top_p(row, settings.top_p)
    if settings.min_p is not None:
        row = keep_min_p(row, settings.min_p)
    return row


def draw(row: Tensor, generator: torch.Generator) -> int:
    """An id drawn with the probabilities that the processed logits stand for."""
    return int(torch.multinomial(row.softmax(-1), 1, generator=generator))
