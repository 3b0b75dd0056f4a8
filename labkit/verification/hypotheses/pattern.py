"""Mistakes in the attention pattern: the mask, the softmax, its dtype, dropout."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.verification.hypotheses.scene import Hypothesis, Scene, Variants
from labkit.verification.operations import Rounding, Softmax
from labkit.verification.precision import unit_roundoff


@dataclass(frozen=True)
class FiniteMask(Softmax):
    """The future is not cut off but pushed down by a finite number."""

    value: float

    def _masked(self, scores: Tensor) -> Tensor:
        return torch.where(self.allowed, scores, scores + self.value)

    def compute(self, *inputs: Tensor) -> Tensor:
        return self._masked(inputs[0]).softmax(dim=-1)  # [batch, head, pos_q, pos_k]

    def rounding(self, output: Tensor, *inputs: Tensor) -> Rounding:
        masked = self._masked(inputs[0])
        below = masked.amax(dim=-1, keepdim=True) - masked
        return Rounding(output, output.shape[-1], output * (4 + below + masked.abs()))


@dataclass(frozen=True)
class MaskAfter(Softmax):
    """Softmax over everything, then the future set to zero: rows no longer sum to one."""

    def compute(self, *inputs: Tensor) -> Tensor:
        return inputs[0].softmax(dim=-1) * self.allowed  # [batch, head, pos_q, pos_k]


@dataclass(frozen=True)
class OverQueries(Softmax):
    """Softmax along the queries instead of the keys."""

    def compute(self, *inputs: Tensor) -> Tensor:
        return inputs[0].masked_fill(~self.allowed, -math.inf).softmax(dim=-2).nan_to_num(nan=0.0)


@dataclass(frozen=True)
class RoundedPattern(Softmax):
    """Softmax whose scores or result are rounded to a narrower dtype."""

    narrow: torch.dtype
    scores_too: bool
    computed: torch.dtype
    """What the engine computes in before it rounds."""

    def _exact(self, scores: Tensor) -> Tensor:
        return super().compute(scores.to(self.narrow).double() if self.scores_too else scores)

    def compute(self, *inputs: Tensor) -> Tensor:
        return self._exact(inputs[0]).to(self.narrow).double()

    def rounding(self, output: Tensor, *inputs: Tensor) -> Rounding:
        exact = self._exact(inputs[0])
        plain = super().rounding(exact, *inputs)
        u = unit_roundoff(self.computed)
        off = u * (plain.terms**0.5 * plain.summed + plain.single)
        ends = ((exact + sign * off).to(self.narrow).double() for sign in (-1, 1))
        low, high = ends  # a value near the middle of two neighbours may be rounded to either
        return Rounding(plain.summed, plain.terms, plain.single + (high - low) / u, plain.exact)


@dataclass(frozen=True)
class Dropped(Softmax):
    """Dropout left on: what the candidate has not zeroed is scaled up by 1 / (1 - rate)."""

    kept: Tensor
    rate: float

    def compute(self, *inputs: Tensor) -> Tensor:
        return super().compute(*inputs) * self.kept / (1 - self.rate)


def _softmax(scene: Scene, tap: str) -> Softmax:
    operation = scene.stages[tap].operation
    assert isinstance(operation, Softmax)
    return operation


def _allowed(mask: Callable[[Scene], Tensor]) -> Callable[[Scene, str], Variants]:
    return lambda scene, tap: {tap: scene.changed(tap, Softmax(mask(scene)))}


def _everything(scene: Scene) -> Tensor:
    return scene.inputs.real[:, None, None, :].expand(-1, 1, scene.inputs.ids.shape[1], -1)


def _one_ahead(scene: Scene) -> Tensor:
    pos = scene.inputs.ids.shape[1]
    return torch.ones(pos, pos, dtype=torch.bool).tril(1) & scene.inputs.real[:, None, None, :]


def _not_itself(scene: Scene) -> Tensor:
    allowed = scene.inputs.allowed  # [batch, 1, pos_q, pos_k]
    strict = allowed & ~torch.eye(allowed.shape[-1], dtype=torch.bool)
    return torch.where(strict.any(dim=-1, keepdim=True), strict, allowed)


def _padding_seen(scene: Scene, tap: str) -> Variants:
    if scene.inputs.attention_mask is None or bool(scene.inputs.real.all()):
        return {}
    pos = scene.inputs.ids.shape[1]
    return {tap: scene.changed(tap, Softmax(torch.ones(pos, pos, dtype=torch.bool).tril()[None, None]))}


def _finite(value: float) -> Callable[[Scene, str], Variants]:
    return lambda scene, tap: {tap: scene.changed(tap, FiniteMask(_softmax(scene, tap).allowed, value))}


def solve_mask(scene: Scene, tap: str) -> tuple[float, float] | None:
    """The finite mask's value and its standard error, from how much of the pattern leaks to the future."""
    scores_tap = scene.stages[tap].inputs[0]
    if tap not in scene.candidate or scores_tap not in scene.candidate:
        return None
    pattern, scores = scene.candidate[tap].double(), scene.candidate[scores_tap].double()
    allowed = _softmax(scene, tap).allowed.expand_as(pattern)
    hidden = ~allowed & (pattern > torch.finfo(torch.float32).tiny) & scene.inputs.real[:, None, :, None]
    if int(hidden.sum()) < 2:
        return None
    log_total = torch.where(allowed, pattern, 0.0).sum(dim=-1).log()  # [batch, head, pos_q]
    log_seen = scores.masked_fill(~allowed, -math.inf).logsumexp(dim=-1)  # [batch, head, pos_q]
    found = (pattern.log() - scores - log_total[..., None] + log_seen[..., None])[hidden]
    value, error = float(found.mean()), float(found.std() / len(found) ** 0.5)
    return (value, error) if value < -0.5 and error < 0.05 * abs(value) else None


def _solved_mask(scene: Scene, tap: str) -> Variants:
    solved = solve_mask(scene, tap)
    return {} if solved is None else _finite(solved[0])(scene, tap)


def _mask_evidence(scene: Scene, tap: str) -> str:
    solved = solve_mask(scene, tap)
    return "" if solved is None else f"mask value = {solved[0]:.4g} ± {solved[1]:.1g}"


def _rounded_pattern(dtype: torch.dtype, *, scores_too: bool) -> Callable[[Scene, str], Variants]:
    def variants(scene: Scene, tap: str) -> Variants:
        compute = scene.precision.compute
        if unit_roundoff(dtype) <= unit_roundoff(compute):
            return {}
        return {tap: scene.changed(tap, RoundedPattern(_softmax(scene, tap).allowed, dtype, scores_too, compute))}

    return variants


def _dropout(scene: Scene, tap: str) -> Variants:
    if tap not in scene.candidate:
        return {}
    kept = scene.candidate[tap].double() != 0
    return {tap: scene.changed(tap, Dropped(_softmax(scene, tap).allowed, kept, 0.1))}


HYPOTHESES = (
    Hypothesis(
        name="no-mask", site="attn.pattern", cause="the causal mask is left out", variants=_allowed(_everything)
    ),
    Hypothesis(
        name="mask-one-ahead",
        site="attn.pattern",
        cause="the causal mask lets one future token in",
        variants=_allowed(_one_ahead),
    ),
    Hypothesis(
        name="mask-excludes-itself",
        site="attn.pattern",
        cause="the causal mask hides a token from itself",
        variants=_allowed(_not_itself),
    ),
    Hypothesis(
        name="mask-finite-10",
        site="attn.pattern",
        cause="the mask adds -10 to the future instead of cutting it off",
        variants=_finite(-10.0),
    ),
    Hypothesis(
        name="mask-finite-1e4",
        site="attn.pattern",
        cause="the mask adds -10,000 to the future instead of cutting it off",
        variants=_finite(-1e4),
    ),
    Hypothesis(
        name="mask-finite-solved",
        site="attn.pattern",
        cause="the mask adds a finite number to the future instead of cutting it off",
        variants=_solved_mask,
        fitted=True,
        evidence=_mask_evidence,
    ),
    Hypothesis(
        name="mask-after-softmax",
        site="attn.pattern",
        cause="the future is set to zero after the softmax, so rows do not sum to one",
        variants=lambda scene, tap: {tap: scene.changed(tap, MaskAfter(_softmax(scene, tap).allowed))},
    ),
    Hypothesis(
        name="padding-attended",
        site="attn.pattern",
        cause="keys of padding are attended to",
        variants=_padding_seen,
    ),
    Hypothesis(
        name="softmax-over-queries",
        site="attn.pattern",
        cause="the softmax runs along the queries instead of the keys",
        variants=lambda scene, tap: {tap: scene.changed(tap, OverQueries(_softmax(scene, tap).allowed))},
    ),
    Hypothesis(
        name="softmax-bfloat16",
        site="attn.pattern",
        cause="the pattern is rounded to bfloat16",
        variants=_rounded_pattern(torch.bfloat16, scores_too=False),
    ),
    Hypothesis(
        name="scores-bfloat16",
        site="attn.pattern",
        cause="scores and pattern are rounded to bfloat16",
        variants=_rounded_pattern(torch.bfloat16, scores_too=True),
    ),
    Hypothesis(
        name="softmax-float16",
        site="attn.pattern",
        cause="the pattern is rounded to float16",
        variants=_rounded_pattern(torch.float16, scores_too=False),
    ),
    Hypothesis(
        name="dropout-left-on",
        site="attn.pattern",
        cause="dropout of the pattern (rate 0.1) is left on",
        variants=_dropout,
        recorded_only=True,
    ),
)
