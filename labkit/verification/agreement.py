"""How alike two sets of logits are, in the figures that other tools report."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How alike the logits are, over all prompts and positions."""

    pearson: float
    """Pearson's correlation of the candidate's logits with the truth's; the smallest over the prompts."""
    top_1: float
    """Share of positions whose first choice agrees."""
    top_5: float
    """Mean share of the truth's top five among the candidate's top five."""
    kl_mean: float
    """Kullback-Leibler divergence of the candidate's next-token distribution from the truth's, in nats, over positions."""
    kl_max: float
    """The largest of them."""


def agree(actual: Tensor, expected: Tensor) -> Agreement:
    """Pearson's r and top-1, top-5 agreement of logits [..., vocab].

    >>> import torch
    >>> agree(torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[2.0, 4.0, 8.0]]))
    Agreement(pearson=1.0, top_1=1.0, top_5=1.0, kl_mean=0.106..., kl_max=0.106...)
    """
    a, e = actual.double().flatten(0, -2), expected.double().flatten(0, -2)  # [rows, vocab]
    a_flat, e_flat = a.flatten() - a.mean(), e.flatten() - e.mean()  # [rows * vocab]
    size = a_flat.norm() * e_flat.norm()
    log_a, log_e = a.log_softmax(dim=-1), e.log_softmax(dim=-1)  # [rows, vocab]
    kl = (log_e.exp() * (log_e - log_a)).sum(dim=-1).clamp(min=0)  # [rows], nats
    k = min(5, a.shape[-1])
    top_a, top_e = a.topk(k).indices, e.topk(k).indices  # [rows, k]
    return Agreement(
        pearson=1.0 if float(size) == 0 else round(float(a_flat @ e_flat / size), 12),
        top_1=float((top_a[:, 0] == top_e[:, 0]).double().mean()),
        top_5=float((top_a[:, :, None] == top_e[:, None, :]).any(dim=-1).double().mean()),
        kl_mean=float(kl.mean()),
        kl_max=float(kl.max()),
    )


def merge_agreement(parts: Sequence[Agreement]) -> Agreement:
    """The worst of several prompts."""
    return Agreement(
        pearson=min(part.pearson for part in parts),
        top_1=min(part.top_1 for part in parts),
        top_5=min(part.top_5 for part in parts),
        kl_mean=max(part.kl_mean for part in parts),
        kl_max=max(part.kl_max for part in parts),
    )
