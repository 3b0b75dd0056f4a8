"""The operations of GPT-2 in float64, each with what rounding can do to it.

Every operation is three functions of its inputs:

``compute``   the exact output;
``rounding``  the size, element by element, that its own rounding is proportional to, split into what is summed over
              ``terms`` products (``summed``) and what is rounded once or a few times (``single``);
``spread``    how far the output moves when each input element is off by about the given amount (independent errors,
              added in quadrature): the Jacobian applied to the inputs' uncertainty.

Tensors are float64; shapes are in the axes of the design's tap list.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

VOCAB_CHUNK = 4096
"""Columns of a product taken at a time, so that a 50,257-row head needs no second copy of itself."""


@dataclass(frozen=True)
class Rounding:
    """Element by element, the sizes that rounding errors are proportional to."""

    summed: Tensor
    terms: int
    single: Tensor
    exact: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.bool))
    """Elements that are copied or cut off: nothing rounds there, and nothing underflows."""


class Operation(Protocol):
    """One operation: exact output, rounding, and the spread of its inputs' uncertainty."""

    def compute(self, *inputs: Tensor) -> Tensor:
        """The exact output."""

    def rounding(self, output: Tensor, *inputs: Tensor) -> Rounding:
        """What the operation's own rounding is proportional to."""

    def spread(self, output: Tensor, inputs: tuple[Tensor, ...], uncertain: tuple[Tensor, ...]) -> Tensor:
        """The output's uncertainty from that of the inputs."""


def _quadrature(*parts: Tensor) -> Tensor:
    """The root of the sum of squares, also of parts whose squares underflow."""
    total = parts[0]
    for part in parts[1:]:
        total = torch.hypot(total, part)
    return total


@dataclass(frozen=True)
class Gather:
    """Rows of a table: exact, so any difference is a fault."""

    table: Tensor  # [rows, n_embd]
    rows: Tensor  # [batch, pos] or [pos]

    def compute(self, *inputs: Tensor) -> Tensor:
        return self.table[self.rows]  # [batch, pos, n_embd]

    def rounding(self, output: Tensor, *inputs: Tensor) -> Rounding:
        nothing = torch.zeros_like(output)
        return Rounding(nothing, 1, nothing, torch.ones((), dtype=torch.bool))

    def spread(self, output: Tensor, inputs: tuple[Tensor, ...], uncertain: tuple[Tensor, ...]) -> Tensor:
        return torch.zeros_like(output)


@dataclass(frozen=True)
class Add:
    """The sum of two streams."""

    def compute(self, *inputs: Tensor) -> Tensor:
        return inputs[0] + inputs[1]  # [batch, pos, n_embd]

    def rounding(self, output: Tensor, *inputs: Tensor) -> Rounding:
        return Rounding(torch.zeros_like(output), 1, output.abs())

    def spread(self, output: Tensor, inputs: tuple[Tensor, ...], uncertain: tuple[Tensor, ...]) -> Tensor:
        return _quadrature(*uncertain).expand_as(output)


@dataclass(frozen=True)
class LayerNorm:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, over the last axis."""

    weight: Tensor  # [n_embd]
    bias: Tensor  # [n_embd]
    epsilon: float

    def _scale(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x.mean(dim=-1, keepdim=True)  # [batch, pos, 1]
        variance = (x - mean).square().mean(dim=-1, keepdim=True)  # [batch, pos, 1]
        return x - mean, (variance + self.epsilon).rsqrt()

    def compute(self, *inputs: Tensor) -> Tensor:
        centred, scale = self._scale(inputs[0])
        return centred * scale * self.weight + self.bias  # [batch, pos, n_embd]

    def rounding(self, output: Tensor, *inputs: Tensor) -> Rounding:
        x = inputs[0]
        centred, scale = self._scale(x)
        slope = scale * self.weight.abs()  # [batch, pos, n_embd]
        mean_size = x.abs().mean(dim=-1, keepdim=True)  # [batch, pos, 1]
        # The mean is a sum of n terms and so is the variance; as E[x^2] - mean^2 the latter also cancels.
        cancelled = 1 + x.mean(dim=-1, keepdim=True).square() * scale.square()  # [batch, pos, 1]
        # The mean's share of the sum and half the variance's relative error: a quarter of a plain sum's walk.
        summed = slope * (mean_size + centred.abs() * cancelled) / 4  # [batch, pos, n_embd]
        single = slope * (x.abs() + 3 * centred.abs()) + output.abs() + self.bias.abs()  # [batch, pos, n_embd]
        return Rounding(summed, x.shape[-1], single)

    def spread(self, output: Tensor, inputs: tuple[Tensor, ...], uncertain: tuple[Tensor, ...]) -> Tensor:
        centred, scale = self._scale(inputs[0])
        unit = centred * scale  # [batch, pos, n_embd]
        own = uncertain[0].expand_as(unit)
        n = unit.shape[-1]
        mean = own.square().sum(dim=-1, keepdim=True).sqrt() / n  # [batch, pos, 1]
        deviation = (unit * own).square().sum(dim=-1, keepdim=True).sqrt() / n  # [batch, pos, 1]
        return scale * self.weight.abs() * _quadrature(own, mean, unit * deviation)


@dataclass(frozen=True)
class Product:
    """x @ weight + bias, with weight stored [in, out]; heads are merged before and split after where asked."""

    weight: Tensor  # [in, out]
    bias: Tensor | None  # [out]
    split: int | None = None
    """Split the output into this many heads: [batch, pos, out] -> [batch, head, pos, head_dim]."""
    merge: bool = False
    """Merge the heads of the input: [batch, head, pos, head_dim] -> [batch, pos, in]."""

    def _merged(self, x: Tensor) -> Tensor:
        return x.transpose(-3, -2).flatten(-2) if self.merge else x

    def _split(self, y: Tensor) -> Tensor:
        return y if self.split is None else y.reshape(*y.shape[:-1], self.split, -1).transpose(-3, -2)

    def _times(self, x: Tensor, column: Callable[[Tensor], Tensor]) -> Tensor:
        columns = [x @ column(part) for part in torch.split(self.weight, VOCAB_CHUNK, dim=1)]
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=-1)  # [batch, pos, out]

    def compute(self, *inputs: Tensor) -> Tensor:
        y = self._times(self._merged(inputs[0]), lambda w: w)
        return self._split(y if self.bias is None else y + self.bias)

    def rounding(self, output: Tensor, *inputs: Tensor) -> Rounding:
        size = self._times(self._merged(inputs[0]).abs(), torch.abs)
        size = size if self.bias is None else size + self.bias.abs()
        single = 2 * output.abs()
        if self.bias is not None:  # the product may be rounded before the bias is added; it is no larger than the two
            single = single + self._split(self.bias.abs().expand(*size.shape[:-1], -1))
        return Rounding(self._split(size), self.weight.shape[0], single)

    def spread(self, output: Tensor, inputs: tuple[Tensor, ...], uncertain: tuple[Tensor, ...]) -> Tensor:
        own = self._merged(uncertain[0].expand_as(inputs[0]))
        return self._split(self._times(own.square(), torch.square).sqrt())


@dataclass(frozen=True)
class Scores:
    """q @ k.T times the scale, before the mask."""

    scale: float

    def compute(self, *inputs: Tensor) -> Tensor:
        return inputs[0] @ inputs[1].transpose(-1, -2) * self.scale  # [batch, head, pos_q, pos_k]

    def rounding(self, output: Tensor, *inputs: Tensor) -> Rounding:
        q, k = inputs
        return Rounding(q.abs() @ k.abs().transpose(-1, -2) * self.scale, q.shape[-1], 2 * output.abs())

    def spread(self, output: Tensor, inputs: tuple[Tensor, ...], uncertain: tuple[Tensor, ...]) -> Tensor:
        q, k = (x.square() for x in inputs)
        dq, dk = (u.expand_as(x).square() for u, x in zip(uncertain, inputs, strict=True))
        return self.scale * (dq @ k.transpose(-1, -2) + q @ dk.transpose(-1, -2)).sqrt()


@dataclass(frozen=True)
class Softmax:
    """The mask, then softmax over the keys; ``allowed`` says which keys a query may see."""

    allowed: Tensor  # bool, broadcasts to [batch, head, pos_q, pos_k]

    def compute(self, *inputs: Tensor) -> Tensor:
        pattern = inputs[0].masked_fill(~self.allowed, -math.inf).softmax(dim=-1)
        return pattern.nan_to_num(nan=0.0)  # [batch, head, pos_q, pos_k]; a row with no key is left out later

    def rounding(self, output: Tensor, *inputs: Tensor) -> Rounding:
        scores = inputs[0].masked_fill(~self.allowed, -math.inf)
        below = (scores.amax(dim=-1, keepdim=True) - scores).nan_to_num(nan=0.0, posinf=0.0)
        # exp turns an absolute error of its argument (u times its size) into a relative one of its value.
        single = output * (4 + below + scores.nan_to_num(neginf=0.0).abs())  # [batch, head, pos_q, pos_k]
        return Rounding(output, output.shape[-1], single, ~self.allowed)

    def spread(self, output: Tensor, inputs: tuple[Tensor, ...], uncertain: tuple[Tensor, ...]) -> Tensor:
        return moved_weights(output, self.exponent(output, uncertain[0]))

    def exponent(self, output: Tensor, uncertain: Tensor) -> Tensor:
        """How far the logarithm of each weight may be off, for scores that may each be off by ``uncertain``.

        By its own score, and by what every weight of the row may grow to: that is lost to it through their common sum.
        To first order this is the Jacobian.
        """
        own = torch.where(self.allowed, uncertain.expand_as(output), 0.0).clamp(max=EXPONENT_LIMIT)
        grown = (output * torch.expm1(own)).square().sum(dim=-1, keepdim=True).sqrt()  # [batch, head, pos_q, 1]
        return torch.where(self.allowed, _quadrature(own, torch.log1p(grown)), 0.0)  # [batch, head, pos_q, pos_k]


EXPONENT_LIMIT = 300.0
"""An exponent's uncertainty beyond which a weight may be anything: the square of its exponential is still a float64."""


def moved_weights(pattern: Tensor, exponent: Tensor) -> Tensor:
    """How far weights may move where the logarithm of each may be off by ``exponent``: a factor, up to a weight of one.

    Scores of tens in a narrow dtype are off by whole units, where to first order says nothing.
    """
    return (pattern * torch.expm1(exponent.clamp(max=EXPONENT_LIMIT))).clamp(max=1)


@dataclass(frozen=True)
class Mix:
    """pattern @ v: each head's weighted mean of values."""

    def compute(self, *inputs: Tensor) -> Tensor:
        return inputs[0] @ inputs[1]  # [batch, head, pos, head_dim]

    def rounding(self, output: Tensor, *inputs: Tensor) -> Rounding:
        pattern, v = inputs
        return Rounding(pattern.abs() @ v.abs(), pattern.shape[-1], output.abs())

    def spread(self, output: Tensor, inputs: tuple[Tensor, ...], uncertain: tuple[Tensor, ...]) -> Tensor:
        pattern, v = (x.square() for x in inputs)
        dp, dv = (u.expand_as(x).square() for u, x in zip(uncertain, inputs, strict=True))
        return (dp @ v + pattern @ dv).sqrt()


@dataclass(frozen=True)
class Activation:
    """The MLP's activation, elementwise."""

    function: Callable[[Tensor], Tensor]

    def compute(self, *inputs: Tensor) -> Tensor:
        return self.function(inputs[0])  # [batch, pos, n_inner]

    def rounding(self, output: Tensor, *inputs: Tensor) -> Rounding:
        return Rounding(torch.zeros_like(output), 1, 8 * inputs[0].abs())

    def spread(self, output: Tensor, inputs: tuple[Tensor, ...], uncertain: tuple[Tensor, ...]) -> Tensor:
        return 1.13 * uncertain[0].expand_as(output)  # no slope of GELU, ReLU or SiLU exceeds 1.13


def gelu_new(x: Tensor) -> Tensor:
    """GELU by its tanh form, as GPT-2 was trained (Hendrycks and Gimpel, 2016)."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x: Tensor) -> Tensor:
    """GELU by the error function."""
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def silu(x: Tensor) -> Tensor:
    """x times its sigmoid."""
    return x * torch.sigmoid(x)


def gelu_fast(x: Tensor) -> Tensor:
    """GELU by tanh with sqrt(2 / pi) to ten digits, as transformers writes it."""
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * x * (1 + 0.044715 * x * x)))


def gelu_sigmoid(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), the quick form."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": gelu_new,
    "gelu_pytorch_tanh": gelu_new,
    "gelu_python_tanh": gelu_new,
    "gelu_accurate": gelu_new,
    "gelu_fast": gelu_fast,
    "quick_gelu": gelu_sigmoid,
    "tanh": torch.tanh,
    "gelu": gelu_erf,
    "gelu_python": gelu_erf,
    "relu": torch.relu,
    "silu": silu,
    "swish": silu,
}
