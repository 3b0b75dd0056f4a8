"""Faults of attention: heads, scale, mask, softmax, mix, merge. Scores take q, k, scale; the pattern scores, visible."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from labkit.config import GPT2Config
from labkit.errors import ArgumentError
from labkit.verification.faults.fault import Fault, Wrong, swap


def _scores_by(factor: Callable[[GPT2Config], float]) -> Wrong:
    return lambda config, _block: {
        "scores": lambda q, k, _scale: torch.einsum("bhid,bhjd->bhij", q, k) * factor(config)
    }


def _pattern_allowing(allow: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def pattern(scores: Tensor, visible: Tensor) -> Tensor:
        return torch.softmax(torch.where(allow(scores, visible), scores, -torch.inf), dim=-1)

    return pattern


def _triangle(scores: Tensor, diagonal: int) -> Tensor:
    """Keys up to ``diagonal`` after each query; queries are the last of the keys' positions."""
    pos_q, pos_k = scores.shape[-2:]
    return torch.ones(pos_q, pos_k, dtype=torch.bool, device=scores.device).tril(diagonal + pos_k - pos_q)


def _real_keys(scores: Tensor, visible: Tensor) -> Tensor:
    """Keys that the last query sees."""
    return visible[..., -1:, :].expand(*visible.shape[:-2], *scores.shape[-2:])


def _excludes_itself(scores: Tensor, visible: Tensor) -> Tensor:
    itself = _triangle(scores, 0) & ~_triangle(scores, -1)  # [pos_q, pos_k]
    allowed = visible & ~itself
    nothing = ~allowed.any(dim=-1, keepdim=True)
    return torch.where(nothing, visible, allowed)


def _finite(value: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda scores, visible: torch.softmax(scores + torch.where(visible, 0.0, value), dim=-1)


def _after(scores: Tensor, visible: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1) * visible


def _over_queries(scores: Tensor, visible: Tensor) -> Tensor:
    return torch.softmax(torch.where(visible, scores, -torch.inf), dim=-2).nan_to_num(0.0)


def _rounded(dtype: torch.dtype, *, scores_too: bool = False) -> Callable[[Tensor, Tensor], Tensor]:
    def pattern(scores: Tensor, visible: Tensor) -> Tensor:
        given = scores.to(dtype).to(scores.dtype) if scores_too else scores
        return torch.softmax(torch.where(visible, given, -torch.inf), dim=-1).to(dtype).to(scores.dtype)

    return pattern


def _dropout(scores: Tensor, visible: Tensor) -> Tensor:
    plain = torch.softmax(torch.where(visible, scores, -torch.inf), dim=-1)
    kept = torch.rand(plain.shape, generator=torch.Generator().manual_seed(7)) >= 0.1
    return plain * kept.to(plain.device) / 0.9


def _stale_v(pattern: Tensor, v: Tensor) -> Tensor:
    stale = v.clone()
    stale[..., -1:, :] = v[..., -2:, :][..., :1, :]  # one token alone has none before it
    return pattern @ stale


def _late_v(pattern: Tensor, v: Tensor) -> Tensor:
    late = v.roll(1, dims=-2)
    late[..., 0, :] = v[..., 0, :]
    return pattern @ late


def _swapped_scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    if q.shape != k.shape:
        raise ArgumentError(
            "fault scores-transposed has no scores where queries and keys differ in number",
            expected="all positions at once",
            got=f"{q.shape[-2]} of {k.shape[-2]} positions",
            fix="run it without decode steps",
        )
    return k @ q.transpose(-1, -2) * scale


def _keys_mixed(_config: GPT2Config, _block: int) -> Mapping[str, Any]:
    seen: dict[str, Tensor] = {}

    def scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
        seen["k"] = k
        return q @ k.transpose(-1, -2) * scale

    return {"scores": scores, "z": lambda pattern, _v: pattern @ seen["k"].to(pattern.dtype)}


def _half_the_heads(packed: Tensor, n_head: int) -> tuple[Tensor, Tensor, Tensor]:
    parts = packed.chunk(3, dim=-1)
    q, k, v = (part.view(*part.shape[:-1], n_head // 2, -1).transpose(1, 2) for part in parts)
    return q, k, v


ATTENTION = (
    Fault(
        name="wrong-head-count",
        mistake="half as many heads, each twice as wide",
        stage="h.{b}.attn.q",
        operations=swap(split_heads=_half_the_heads),
        fits=lambda config, _block: config.n_head % 2 == 0,
        graded=False,
    ),
    Fault(
        name="scale-missing",
        mistake="scores are not divided by sqrt(head_dim)",
        stage="h.{b}.attn.scores",
        operations=lambda config, block: {
            "scores": lambda q, k, scale: q @ k.transpose(-1, -2) * (scale * math.sqrt(config.head_dim))
        },
    ),
    Fault(
        name="scale-n_embd",
        mistake="scores are divided by sqrt(n_embd)",
        stage="h.{b}.attn.scores",
        operations=_scores_by(lambda config: 1 / math.sqrt(config.n_embd)),
        fits=lambda config, _block: config.n_head > 1,
    ),
    Fault(
        name="scale-head_dim",
        mistake="scores are divided by head_dim",
        stage="h.{b}.attn.scores",
        operations=_scores_by(lambda config: 1 / config.head_dim),
    ),
    Fault(
        name="scale-0.3",
        mistake="scores are multiplied by 0.3",
        stage="h.{b}.attn.scores",
        operations=_scores_by(lambda _config: 0.3),
        finding="scale-solved",
    ),
    Fault(
        name="scores-transposed",
        mistake="k @ q.T is computed",
        stage="h.{b}.attn.scores",
        operations=swap(scores=_swapped_scores),
    ),
    Fault(
        name="no-mask",
        mistake="the causal mask is left out",
        stage="h.{b}.attn.pattern",
        operations=swap(pattern=_pattern_allowing(_real_keys)),
    ),
    Fault(
        name="mask-one-ahead",
        mistake="the causal mask lets one future token in",
        stage="h.{b}.attn.pattern",
        operations=swap(pattern=_pattern_allowing(lambda s, visible: _triangle(s, 1) & _real_keys(s, visible))),
    ),
    Fault(
        name="mask-excludes-itself",
        mistake="the causal mask hides a token from itself",
        stage="h.{b}.attn.pattern",
        operations=swap(pattern=_pattern_allowing(_excludes_itself)),
    ),
    Fault(
        name="mask-finite-10",
        mistake="the mask adds -10 to the future",
        stage="h.{b}.attn.pattern",
        operations=swap(pattern=_finite(-10.0)),
    ),
    Fault(
        name="mask-finite-1e4",
        mistake="the mask adds -10,000 to the future",
        stage="h.{b}.attn.pattern",
        operations=swap(pattern=_finite(-1e4)),
    ),
    Fault(
        name="mask-finite-7",
        mistake="the mask adds -7 to the future",
        stage="h.{b}.attn.pattern",
        operations=swap(pattern=_finite(-7.0)),
        finding="mask-finite-solved",
    ),
    Fault(
        name="mask-after-softmax",
        mistake="the future is set to zero after the softmax",
        stage="h.{b}.attn.pattern",
        operations=swap(pattern=_after),
    ),
    Fault(
        name="padding-attended",
        mistake="keys of padding are attended to",
        stage="h.{b}.attn.pattern",
        operations=swap(pattern=_pattern_allowing(lambda s, _visible: _triangle(s, 0))),
    ),
    Fault(
        name="softmax-over-queries",
        mistake="the softmax runs along the queries",
        stage="h.{b}.attn.pattern",
        operations=swap(pattern=_over_queries),
    ),
    Fault(
        name="softmax-bfloat16",
        mistake="the pattern is rounded to bfloat16",
        stage="h.{b}.attn.pattern",
        operations=swap(pattern=_rounded(torch.bfloat16)),
    ),
    Fault(
        name="scores-bfloat16",
        mistake="scores and pattern are rounded to bfloat16",
        stage="h.{b}.attn.pattern",
        operations=swap(pattern=_rounded(torch.bfloat16, scores_too=True)),
    ),
    Fault(
        name="softmax-float16",
        mistake="the pattern is rounded to float16",
        stage="h.{b}.attn.pattern",
        operations=swap(pattern=_rounded(torch.float16)),
    ),
    Fault(
        name="softmax-without-max",
        mistake="the softmax does not subtract the row's maximum",
        stage="h.{b}.attn.pattern",
        operations=swap(
            pattern=lambda s, visible: functional.normalize(torch.where(visible, s, -torch.inf).exp(), p=1, dim=-1)
        ),
    ),
    Fault(
        name="dropout-left-on",
        mistake="dropout of the pattern is left on, at rate 0.1",
        stage="h.{b}.attn.pattern",
        operations=swap(pattern=_dropout),
        graded=False,
    ),
    Fault(
        name="stale-v",
        mistake="the newest position's value is missing from the cache",
        stage="h.{b}.attn.z",
        operations=swap(z=_stale_v),
    ),
    Fault(
        name="late-v",
        mistake="every value is taken one position too late",
        stage="h.{b}.attn.z",
        operations=swap(z=_late_v),
    ),
    Fault(
        name="mix-of-keys",
        mistake="the pattern is applied to K",
        stage="h.{b}.attn.z",
        operations=_keys_mixed,
    ),
    Fault(
        name="merge-without-transpose",
        mistake="heads are merged without transposing back",
        stage="h.{b}.attn.out",
        operations=swap(merge_heads=lambda z: z.contiguous().view(z.shape[0], z.shape[2], -1)),
        fits=lambda config, _block: config.n_head > 1,
    ),
    Fault(
        name="merge-interleaved",
        mistake="heads are merged element by element",
        stage="h.{b}.attn.out",
        operations=swap(merge_heads=lambda z: torch.einsum("bhpd->bpdh", z).flatten(2)),
        fits=lambda config, _block: config.n_head > 1,
    ),
)
