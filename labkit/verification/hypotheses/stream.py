"""Mistakes around the residual stream, in the MLP's activation, and at the head."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.verification.hypotheses.embedding import Scaled
from labkit.verification.hypotheses.scene import Hypothesis, Scene, Variants
from labkit.verification.operations import (
    ACTIVATIONS,
    Activation,
    Add,
    Operation,
    Product,
    Rounding,
    gelu_erf,
    gelu_new,
    gelu_sigmoid,
    silu,
)


def _activation(name: str, function: Callable[[Tensor], Tensor]) -> Hypothesis:
    def variants(scene: Scene, tap: str) -> Variants:
        if ACTIVATIONS[scene.config.activation_function] is function:
            return {}
        return {tap: scene.changed(tap, Activation(function))}

    cause = f"the activation is {name.replace('-', ' ')} instead of the checkpoint's activation_function"
    return Hypothesis(name=name, site="mlp.post", cause=cause, variants=variants)


def _first_of_block(scene: Scene, tap: str) -> str:
    return scene.stream(scene.block(tap))


def _adds(site: str, name: str, cause: str, other: Callable[[Scene, str], str]) -> Hypothesis:
    def variants(scene: Scene, tap: str) -> Variants:
        branch = scene.stages[tap].inputs[0]
        return {tap: scene.changed(tap, Add(), (branch, other(scene, tap)))}

    return Hypothesis(name=name, site=site, cause=cause, variants=variants)


def _scaled(site: str, name: str, cause: str, first: float, second: float) -> Hypothesis:
    return Hypothesis(
        name=name,
        site=site,
        cause=cause,
        variants=lambda scene, tap: {tap: scene.changed(tap, Scaled(first, second))},
    )


def _in_block(stage: str) -> Callable[[Scene, str], str]:
    return lambda scene, tap: f"h.{scene.block(tap)}.{stage}"


def _mlp_without_norm(scene: Scene, tap: str) -> Variants:
    return {tap: scene.changed(tap, scene.stages[tap].operation, (f"h.{scene.block(tap)}.resid_mid",))}


def _mlp_of_ln_1(scene: Scene, tap: str) -> Variants:
    return {tap: scene.changed(tap, scene.stages[tap].operation, (f"h.{scene.block(tap)}.ln_1",))}


def _head_before_norm(scene: Scene, tap: str) -> Variants:
    return {tap: scene.changed(tap, scene.stages[tap].operation, (scene.stream(scene.config.n_layer),))}


@dataclass(frozen=True)
class Afterwards:
    """An operation whose output is then scaled or rearranged: no copy of a large head is needed for it."""

    operation: Operation
    change: Callable[[Tensor], Tensor]

    def compute(self, *inputs: Tensor) -> Tensor:
        return self.change(self.operation.compute(*inputs))

    def rounding(self, output: Tensor, *inputs: Tensor) -> Rounding:
        before = self.operation.compute(*inputs)
        rounding = self.operation.rounding(before, *inputs)
        return Rounding(self.change(rounding.summed), rounding.terms, self.change(rounding.single))

    def spread(self, output: Tensor, inputs: tuple[Tensor, ...], uncertain: tuple[Tensor, ...]) -> Tensor:
        return self.change(self.operation.spread(output, inputs, uncertain))


def _head_scaled(scene: Scene, tap: str) -> Variants:
    scale = scene.config.n_embd**-0.5
    return {tap: scene.changed(tap, Afterwards(scene.stages[tap].operation, lambda logits: logits * scale))}


def _head_tied(scene: Scene, tap: str) -> Variants:
    if torch.equal(scene.weights["lm_head.weight"], scene.weights["wte.weight"]):
        return {}
    return {tap: scene.changed(tap, Product(scene.weights["wte.weight"].T, None))}


def _head_shifted(scene: Scene, tap: str) -> Variants:
    return {tap: scene.changed(tap, Afterwards(scene.stages[tap].operation, lambda logits: logits.roll(1, dims=-1)))}


HYPOTHESES = (
    _activation("erf-gelu", gelu_erf),
    _activation("tanh-gelu", gelu_new),
    _activation("sigmoid-gelu", gelu_sigmoid),
    _activation("relu", torch.relu),
    _activation("silu", silu),
    _adds(
        "resid_mid",
        "residual-after-norm",
        "attention's output is added to its norm (ln_1) instead of the residual stream",
        _in_block("ln_1"),
    ),
    _adds(
        "resid_post",
        "residual-after-norm-mlp",
        "the MLP's output is added to its norm (ln_2) instead of the residual stream",
        _in_block("ln_2"),
    ),
    _adds(
        "resid_post",
        "residual-skips-attention",
        "the MLP's output is added to the stream that entered the block, so attention's is lost",
        _first_of_block,
    ),
    _scaled("resid_mid", "residual-missing", "the residual stream is not added to attention's output", 1.0, 0.0),
    _scaled("resid_post", "residual-missing-mlp", "the residual stream is not added to the MLP's output", 1.0, 0.0),
    _scaled("resid_mid", "branch-missing", "attention's output is not added to the stream", 0.0, 1.0),
    _scaled("resid_post", "branch-missing-mlp", "the MLP's output is not added to the stream", 0.0, 1.0),
    _scaled("resid_mid", "residual-twice", "the residual stream is added twice", 1.0, 2.0),
    Hypothesis(
        name="mlp-without-norm",
        site="mlp.pre",
        cause="c_fc is applied to resid_mid, without ln_2",
        variants=_mlp_without_norm,
    ),
    Hypothesis(
        name="mlp-of-ln_1",
        site="mlp.pre",
        cause="c_fc is applied to ln_1's output: attention and MLP run in parallel",
        variants=_mlp_of_ln_1,
    ),
    Hypothesis(
        name="logits-before-ln_f",
        site="logits",
        cause="logits are taken from the residual stream before ln_f",
        variants=_head_before_norm,
    ),
    Hypothesis(
        name="logits-scaled",
        site="logits",
        cause="logits are divided by sqrt(n_embd)",
        variants=_head_scaled,
    ),
    Hypothesis(
        name="head-tied",
        site="logits",
        cause="wte is used as the head, but the checkpoint has an lm_head of its own",
        variants=_head_tied,
    ),
    Hypothesis(
        name="head-off-by-one",
        site="logits",
        cause="logits are off by one row of the vocabulary",
        variants=_head_shifted,
    ),
)
