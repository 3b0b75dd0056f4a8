"""Mistakes in a LayerNorm: epsilon, variance, mean, weight and bias."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labkit.verification.hypotheses.scene import Hypothesis, Scene, Variants
from labkit.verification.operations import LayerNorm, Rounding

EPSILONS = (1e-3, 1e-5, 1e-6, 1e-8, 1e-12)
"""Values of epsilon that libraries use; whichever is not the checkpoint's is a hypothesis."""


@dataclass(frozen=True)
class OtherNorm(LayerNorm):
    """A LayerNorm with another mean, variance or place of epsilon."""

    normalise: Callable[[Tensor, float], tuple[Tensor, Tensor]]
    """x, epsilon -> centred x, factor."""

    def _scale(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.normalise(x, self.epsilon)


@dataclass(frozen=True)
class Unchanged(LayerNorm):
    """No norm at all: the input is handed on."""

    def compute(self, *inputs: Tensor) -> Tensor:
        return inputs[0]

    def rounding(self, output: Tensor, *inputs: Tensor) -> Rounding:
        return Rounding(torch.zeros_like(output), 1, torch.zeros_like(output), torch.ones((), dtype=torch.bool))

    def spread(self, output: Tensor, inputs: tuple[Tensor, ...], uncertain: tuple[Tensor, ...]) -> Tensor:
        return uncertain[0].expand_as(output)


def _norm(scene: Scene, tap: str) -> LayerNorm:
    operation = scene.stages[tap].operation
    assert isinstance(operation, LayerNorm)
    return operation


def _n_minus_1(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().sum(dim=-1, keepdim=True) / (x.shape[-1] - 1)
    return centred, (variance + epsilon).rsqrt()


def _outside(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred, 1 / (centred.square().mean(dim=-1, keepdim=True).sqrt() + epsilon)


def _root_mean_square(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    return x, (x.square().mean(dim=-1, keepdim=True) + epsilon).rsqrt()


def _other(normalise: Callable[[Tensor, float], tuple[Tensor, Tensor]]) -> Callable[[Scene, str], Variants]:
    def variants(scene: Scene, tap: str) -> Variants:
        norm = _norm(scene, tap)
        return {tap: scene.changed(tap, OtherNorm(norm.weight, norm.bias, norm.epsilon, normalise))}

    return variants


def _epsilon(value: float) -> Callable[[Scene, str], Variants]:
    def variants(scene: Scene, tap: str) -> Variants:
        norm = _norm(scene, tap)
        return {} if norm.epsilon == value else {tap: scene.changed(tap, replace(norm, epsilon=value))}

    return variants


def solve_epsilon(scene: Scene, tap: str) -> tuple[float, float] | None:
    """Epsilon and its standard error, from the factor by which each row was scaled; None where it cannot be read."""
    norm, stage = _norm(scene, tap), scene.stages[tap]
    if tap not in scene.candidate or stage.inputs[0] not in scene.candidate:
        return None
    x = scene.candidate[stage.inputs[0]].double()[scene.inputs.real]  # [rows, n_embd]
    y = scene.candidate[tap].double()[scene.inputs.real]  # [rows, n_embd]
    centred = (x - x.mean(dim=-1, keepdim=True)) * norm.weight  # [rows, n_embd]
    factor = ((y - norm.bias) * centred).sum(dim=-1) / centred.square().sum(dim=-1)  # [rows]
    variance = x.var(dim=-1, correction=0)  # [rows]
    found = 1 / factor.square() - variance  # [rows]
    weight = 1 / variance.square()  # the error of `found` grows with the variance
    mean = float((found * weight).sum() / weight.sum())
    error = float((((found - mean).square() * weight).sum() / weight.sum() / max(len(found) - 1, 1)).sqrt())
    return (mean, error) if 0 < mean < 1 and error < 0.2 * mean else None


def _solved(scene: Scene, tap: str) -> Variants:
    solved = solve_epsilon(scene, tap)
    return {} if solved is None else {tap: scene.changed(tap, replace(_norm(scene, tap), epsilon=solved[0]))}


def _solved_evidence(scene: Scene, tap: str) -> str:
    solved = solve_epsilon(scene, tap)
    return "" if solved is None else f"epsilon = {solved[0]:.3g} ± {solved[1]:.1g}"


def _without(*, weight: bool, bias: bool) -> Callable[[Scene, str], Variants]:
    def variants(scene: Scene, tap: str) -> Variants:
        norm = _norm(scene, tap)
        plain = replace(
            norm,
            weight=torch.ones_like(norm.weight) if weight else norm.weight,
            bias=torch.zeros_like(norm.bias) if bias else norm.bias,
        )
        return {tap: scene.changed(tap, plain)}

    return variants


def _swapped(scene: Scene, tap: str) -> Variants:
    other = tap.replace("ln_1", "ln_2") if "ln_1" in tap else tap.replace("ln_2", "ln_1")
    if other == tap:
        return {}
    norm = _norm(scene, other)
    return {tap: scene.changed(tap, norm)}


def _missing(scene: Scene, tap: str) -> Variants:
    norm = _norm(scene, tap)
    return {tap: scene.changed(tap, Unchanged(norm.weight, norm.bias, norm.epsilon))}


HYPOTHESES = (
    *(
        Hypothesis(
            name=f"epsilon-{value:.0e}".replace("e-0", "e-"),
            site="ln",
            cause=f"epsilon is {value:.0e}, not the checkpoint's layer_norm_epsilon",
            variants=_epsilon(value),
        )
        for value in EPSILONS
    ),
    Hypothesis(
        name="epsilon-solved",
        site="ln",
        cause="epsilon has an unusual value",
        variants=_solved,
        fitted=True,
        evidence=_solved_evidence,
    ),
    Hypothesis(
        name="variance-n-1",
        site="ln",
        cause="the variance is divided by N - 1 instead of N",
        variants=_other(_n_minus_1),
    ),
    Hypothesis(
        name="epsilon-outside-sqrt",
        site="ln",
        cause="epsilon is added to the standard deviation instead of the variance",
        variants=_other(_outside),
    ),
    Hypothesis(
        name="rms-norm",
        site="ln",
        cause="the mean is not subtracted (RMSNorm)",
        variants=_other(_root_mean_square),
    ),
    Hypothesis(
        name="norm-without-affine",
        site="ln",
        cause="the norm's weight and bias are not applied",
        variants=_without(weight=True, bias=True),
    ),
    Hypothesis(
        name="norm-without-weight",
        site="ln",
        cause="the norm's weight is not applied",
        variants=_without(weight=True, bias=False),
    ),
    Hypothesis(
        name="norm-without-bias",
        site="ln",
        cause="the norm's bias is not added",
        variants=_without(weight=False, bias=True),
    ),
    Hypothesis(
        name="norms-swapped",
        site="ln",
        cause="ln_1 and ln_2 of the block are swapped",
        variants=_swapped,
    ),
    Hypothesis(
        name="norm-missing",
        site="ln",
        cause="the norm is left out",
        variants=_missing,
    ),
)
