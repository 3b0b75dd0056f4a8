"""Mistakes in a matrix product: layout, bias, block, and the dtype of what is multiplied."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labkit.verification.hypotheses.scene import Hypothesis, Scene, Variants, site_taps
from labkit.verification.operations import Product
from labkit.verification.precision import unit_roundoff

MATRICES = {
    "attn.qkv": "attn.c_attn",
    "attn.out": "attn.c_proj",
    "mlp.pre": "mlp.c_fc",
    "mlp.out": "mlp.c_proj",
}
"""Site -> the Conv1D that it multiplies by."""


TRANSPOSED = {
    "attn.c_attn": "transpose-c_attn",
    "attn.c_proj": "transpose-c_proj",
    "mlp.c_fc": "transpose-c_fc",
    "mlp.c_proj": "transpose-mlp.c_proj",
}
"""Names of the layout mistake; c_attn is never square, so it has no such hypothesis."""


def product(scene: Scene, tap: str) -> Product:
    """The product that makes a tap."""
    operation = scene.stages[tap].operation
    assert isinstance(operation, Product)
    return operation


def every_tap(change: Callable[[Scene, str, Product], Product | None]) -> Callable[[Scene, str], Variants]:
    """Variants that make the same change to each product of a site."""

    def variants(scene: Scene, tap: str) -> Variants:
        changes = {each: change(scene, each, product(scene, each)) for each in site_taps(tap)}
        if any(operation is None for operation in changes.values()):
            return {}
        return {each: scene.changed(each, operation) for each, operation in changes.items() if operation is not None}

    return variants


@dataclass(frozen=True)
class RoundedInput(Product):
    """A product whose input is rounded to a narrower dtype first."""

    narrow: Callable[[Tensor], Tensor] = torch.clone

    def compute(self, *inputs: Tensor) -> Tensor:
        return super().compute(self.narrow(inputs[0]))


def to_tf32(x: Tensor) -> Tensor:
    """Round to the ten bits of mantissa that tensor units keep of a float32.

    >>> to_tf32(torch.tensor([1 + 2**-11 + 2**-13], dtype=torch.float64)).item() == 1 + 2**-10
    True
    """
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp(torch.round(mantissa * 2**11) / 2**11, exponent)


def _transposed(_scene: Scene, _tap: str, op: Product) -> Product | None:
    return replace(op, weight=op.weight.T) if op.weight.shape[0] == op.weight.shape[1] else None


def _unbiased(_scene: Scene, _tap: str, op: Product) -> Product | None:
    return None if op.bias is None else replace(op, bias=None)


def _other_block(step: int) -> Callable[[Scene, str, Product], Product | None]:
    def change(scene: Scene, tap: str, op: Product) -> Product | None:
        block = scene.block(tap) + step
        if not 0 <= block < scene.config.n_layer:
            return None
        other = product(scene, f"h.{block}.{tap.split('.', 2)[2]}")
        return replace(op, weight=other.weight, bias=other.bias)

    return change


def _rounded_weights(dtype: torch.dtype) -> Callable[[Scene, str, Product], Product | None]:
    def change(scene: Scene, _tap: str, op: Product) -> Product | None:
        if unit_roundoff(dtype) <= max(unit_roundoff(scene.precision.weight), unit_roundoff(scene.precision.compute)):
            return None
        return replace(op, weight=op.weight.to(dtype).double())

    return change


def _rounded_inputs(narrow: Callable[[Tensor], Tensor]) -> Callable[[Scene, str, Product], Product | None]:
    def change(scene: Scene, _tap: str, op: Product) -> Product | None:
        if scene.precision.compute not in (torch.float32, torch.float64):
            return None
        return RoundedInput(narrow(op.weight), op.bias, op.split, op.merge, narrow)

    return change


def _for_site(site: str) -> tuple[Hypothesis, ...]:
    matrix = MATRICES[site]
    return (
        Hypothesis(
            name=TRANSPOSED[matrix],
            site=site,
            cause=f"the square {matrix}.weight is used as [out, in]: transposed",
            variants=every_tap(_transposed),
        ),
        Hypothesis(
            name=f"no-bias-{matrix}",
            site=site,
            cause=f"{matrix}.bias is not added",
            variants=every_tap(_unbiased),
        ),
        Hypothesis(
            name=f"previous-block-{matrix}",
            site=site,
            cause=f"{matrix} of the block before is used",
            variants=every_tap(_other_block(-1)),
        ),
        Hypothesis(
            name=f"next-block-{matrix}",
            site=site,
            cause=f"{matrix} of the block after is used",
            variants=every_tap(_other_block(+1)),
        ),
        Hypothesis(
            name=f"bfloat16-weights-{matrix}",
            site=site,
            cause=f"{matrix}.weight is rounded to bfloat16, which is not declared",
            variants=every_tap(_rounded_weights(torch.bfloat16)),
        ),
        Hypothesis(
            name=f"float16-weights-{matrix}",
            site=site,
            cause=f"{matrix}.weight is rounded to float16, which is not declared",
            variants=every_tap(_rounded_weights(torch.float16)),
        ),
        Hypothesis(
            name=f"tf32-{matrix}",
            site=site,
            cause=f"the product with {matrix}.weight rounds both sides to TF32",
            variants=every_tap(_rounded_inputs(to_tf32)),
        ),
    )


HYPOTHESES = tuple(
    hypothesis for site in MATRICES for hypothesis in _for_site(site) if hypothesis.name != TRANSPOSED["attn.c_attn"]
)
