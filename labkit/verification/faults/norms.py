"""Faults of the embeddings and the norms."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from labkit.config import GPT2Config
from labkit.verification.faults.fault import Fault, swap


def _shifted_rows(ids: Tensor, table: Tensor) -> Tensor:
    return table[(ids + 1).clamp(max=len(table) - 1)]


def _padded_positions(positions: Tensor, table: Tensor) -> Tensor:
    return table[torch.arange(positions.shape[-1], device=positions.device).expand_as(positions)]


EMBEDDING = (
    Fault(
        name="ids-off-by-one",
        mistake="each token is looked up one row too far down in wte",
        stage="wte",
        place="model",
        operations=swap(wte=_shifted_rows),
    ),
    Fault(
        name="wte-scaled",
        mistake="token embeddings are multiplied by sqrt(n_embd)",
        stage="wte",
        place="model",
        operations=swap(wte=lambda ids, table: table[ids] * math.sqrt(table.shape[1])),
    ),
    Fault(
        name="positions-off-by-one",
        mistake="positions start at 1",
        stage="wpe",
        place="model",
        operations=swap(wpe=_shifted_rows),
    ),
    Fault(
        name="positions-wrap-64",
        mistake="positions start again at 0 after 64",
        stage="wpe",
        place="model",
        operations=swap(wpe=lambda positions, table: table[positions.remainder(64)]),
        fits=lambda config, _block: config.n_positions > 64,
    ),
    Fault(
        name="positions-ignore-padding",
        mistake="positions count padding on the left",
        stage="wpe",
        place="model",
        operations=swap(wpe=_padded_positions),
    ),
    Fault(
        name="wpe-missing",
        mistake="position embeddings are not added",
        stage="embed",
        place="model",
        operations=swap(embed=lambda tokens, places: tokens + 0 * places),
    ),
    Fault(
        name="wpe-twice",
        mistake="position embeddings are added twice",
        stage="embed",
        place="model",
        operations=swap(embed=lambda tokens, places: tokens + places + places),
    ),
)

# Norms. Each takes x, weight, bias, epsilon.

Norm = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def _with_epsilon(value: float) -> Norm:
    return lambda x, weight, bias, _epsilon: functional.layer_norm(x, weight.shape, weight, bias, value)


def _n_minus_1(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    return (x - x.mean(-1, True)) / torch.sqrt(x.var(-1, correction=1, keepdim=True) + epsilon) * weight + bias  # noqa: FBT003


def _outside(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    return (x - x.mean(-1, True)) / (x.std(-1, correction=0, keepdim=True) + epsilon) * weight + bias  # noqa: FBT003


def _rms(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, epsilon) + bias


NORMS: dict[str, tuple[str, Norm]] = {
    **{
        f"epsilon-{text}": (f"the norm adds {text} instead of layer_norm_epsilon", _with_epsilon(float(text)))
        for text in ("1e-3", "1e-5", "1e-6", "1e-8", "1e-12")
    },
    "variance-n-1": ("the variance is divided by N - 1", _n_minus_1),
    "epsilon-outside-sqrt": ("epsilon is added to the standard deviation", _outside),
    "rms-norm": ("the mean is not subtracted", _rms),
    "norm-without-affine": (
        "weight and bias are not applied",
        lambda x, weight, _bias, epsilon: functional.layer_norm(x, weight.shape, eps=epsilon),
    ),
    "norm-without-weight": (
        "the weight is not applied",
        lambda x, weight, bias, epsilon: functional.layer_norm(x, weight.shape, eps=epsilon) + bias,
    ),
    "norm-without-bias": (
        "the bias is not added",
        lambda x, weight, _bias, epsilon: functional.layer_norm(x, weight.shape, weight, None, epsilon),
    ),
    "norm-missing": ("the norm is left out", lambda x, _weight, _bias, _epsilon: x),
}


def _swapped_norms(parameters: dict[str, Tensor], h: str, _config: GPT2Config) -> None:
    for kind in ("weight", "bias"):
        one, two = f"{h}.ln_1.{kind}", f"{h}.ln_2.{kind}"
        parameters[one], parameters[two] = parameters[two], parameters[one]


def _other_epsilon(name: str) -> Callable[[GPT2Config, int], bool]:
    text = name.removeprefix("epsilon-")
    return lambda config, _block: not text.startswith("1e") or config.layer_norm_epsilon != float(text)


NORM = (
    *(
        Fault(
            name=name,
            mistake=mistake,
            stage="h.{b}.ln_1",
            operations=swap(ln_1=norm),
            fits=_other_epsilon(name) if name.startswith("epsilon-") else lambda _config, _block: True,
        )
        for name, (mistake, norm) in NORMS.items()
    ),
    Fault(
        name="epsilon-3e-4",
        mistake="the norm adds 3e-4, which no library uses",
        stage="h.{b}.ln_1",
        operations=swap(ln_1=_with_epsilon(3e-4)),
        finding="epsilon-solved",
    ),
    Fault(
        name="norms-swapped",
        mistake="ln_1 and ln_2 of the block are swapped",
        stage="h.{b}.ln_1",
        edit=_swapped_norms,
    ),
    Fault(
        name="ln_2-missing",
        mistake="ln_2 is left out",
        stage="h.{b}.ln_2",
        operations=swap(ln_2=NORMS["norm-missing"][1]),
        finding="norm-missing",
    ),
    Fault(
        name="ln_f-missing",
        mistake="ln_f is left out",
        stage="ln_f",
        place="model",
        operations=swap(ln_f=NORMS["norm-missing"][1]),
        finding="norm-missing",
    ),
)
