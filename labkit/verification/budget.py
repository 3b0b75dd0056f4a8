"""stage, inputs, precision -> what the stage should give, and how far rounding alone may move it.

    own        the operation's own rounding in the compute and accumulate dtypes
    inherited  what the inputs' uncertainty becomes at the output
    budget     both in quadrature; zero where the operation is exact (a gather, a masked entry), so equality is asked

The same two lines serve twice: from the candidate's own inputs (whose only uncertainty is the dtype they were stored
in) they judge one operation; from the truth's inputs, with uncertainty carried along the chain, the whole prefix.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.verification.chain import Inputs, Stage
from labkit.verification.operations import Softmax, moved_weights
from labkit.verification.precision import INPUT_FACTOR, PRODUCT_FACTOR, SINGLE_FACTOR, Precision, unit_roundoff

FLUSHED = {torch.float16: 2.0**-24}
"""What a value may lose to underflow: in float16 one subnormal step; else the smallest normal, for engines that flush."""


@dataclass(frozen=True)
class Expected:
    """What a stage should give: the exact output and its uncertainty, element by element (float64)."""

    output: Tensor
    own: Tensor
    inherited: Tensor
    logarithmic: bool = False
    """Whether ``inherited`` is that of the output's logarithm: a softmax's weights do not move in proportion to it."""

    @property
    def budget(self) -> Tensor:
        """The largest error that rounding explains."""
        return self.scaled(1.0)

    def scaled(self, factor: float) -> Tensor:
        """The budget if the operation's own rounding and its inputs' uncertainty were ``factor`` times as large."""
        inherited = factor * self.inherited
        moved = moved_weights(self.output, inherited) if self.logarithmic else inherited
        return torch.hypot(factor * self.own, moved)

    def needed(self, error: Tensor) -> Tensor:
        """A factor at which ``scaled`` covers an error, element by element: the least, or a little more for a softmax."""
        if not self.logarithmic:
            return share_of(error, self.budget)
        # An exponential is above its tangent, and the whole budget above either part: the lesser factor is enough.
        linear = share_of(error, torch.hypot(self.own, self.output * self.inherited))
        return torch.minimum(linear, share_of(torch.log1p(share_of(error, self.output)), self.inherited))


def share_of(error: Tensor, budget: Tensor, mask: Tensor | None = None) -> Tensor:
    """Error over budget, where the mask is true; where the budget is zero any error is beyond all bounds."""
    share = torch.where(error > 0, error / budget, 0.0)
    return share if mask is None else torch.where(mask.expand_as(share), share, 0.0)


def expect(stage: Stage, inputs: tuple[Tensor, ...], uncertain: tuple[Tensor, ...], precision: Precision) -> Expected:
    """Run ``stage`` in float64 on ``inputs`` whose elements may each be off by ``uncertain``."""
    output = stage.operation.compute(*inputs)
    rounding = stage.operation.rounding(output, *inputs)
    summed = PRODUCT_FACTOR * rounding.terms**0.5 * unit_roundoff(precision.accumulate) * rounding.summed
    own = summed + SINGLE_FACTOR * unit_roundoff(precision.compute) * rounding.single
    own = torch.where(rounding.exact, 0.0, own + smallest(precision.compute))
    if all(not bool(u.any()) for u in uncertain):
        return Expected(output, own, torch.zeros((), dtype=torch.float64))
    if isinstance(stage.operation, Softmax):
        return Expected(output, own, stage.operation.exponent(output, uncertain[0]), logarithmic=True)
    return Expected(output, own, stage.operation.spread(output, inputs, uncertain))


def smallest(dtype: torch.dtype) -> float:
    """The absolute error that underflow can make in ``dtype``."""
    return FLUSHED.get(dtype, float(torch.finfo(dtype).tiny))


def storage_uncertainty(value: Tensor, stored: torch.dtype, precision: Precision) -> Tensor:
    """How far a recorded value may be off because it was stored in a narrower dtype than it was computed in."""
    lost = smallest(stored) if smallest(stored) > smallest(precision.compute) else 0.0
    if unit_roundoff(stored) <= unit_roundoff(precision.compute):
        return torch.full((), lost, dtype=torch.float64)
    return INPUT_FACTOR * unit_roundoff(stored) * value.abs() + smallest(stored)


def as_stored(value: Tensor, stored: torch.dtype, precision: Precision) -> Tensor:
    """The value as it would have been recorded: rounded where it was stored in a narrower dtype than it was computed in.

    Storing rounds as a mistake of that dtype would, so both have to be replayed with it.
    """
    if unit_roundoff(stored) <= unit_roundoff(precision.compute):
        return value
    return value.to(stored).double()


def as_computed(value: Tensor, recorded: Tensor, precision: Precision) -> Tensor:
    """The value as the engine would hold it: in its compute dtype, unless what it recorded has more digits than that."""
    narrow = recorded.to(precision.compute)
    if not torch.equal(narrow.double(), recorded.double()):
        return value
    return value.to(precision.compute).to(recorded.dtype).double()


def compared(tap: str, inputs: Inputs) -> Tensor:
    """bool, broadcasts to the tap's shape: the elements that mean something.

    Rows of padding are left out at every tap; scores count on the causal triangle only, but the pattern on the full
    square, where the future must be exactly zero.
    """
    real = inputs.real  # [batch, pos]
    if tap.endswith(".attn.scores"):
        return inputs.allowed & real[:, None, :, None]  # [batch, 1, pos_q, pos_k]
    if tap.endswith((".attn.pattern", ".attn.q", ".attn.k", ".attn.v", ".attn.z")):
        return real[:, None, :, None]  # [batch, 1, pos, 1]
    if tap == "wpe" and inputs.position_ids is None:
        return torch.ones(real.shape[1], 1, dtype=torch.bool)  # [pos, 1]
    return real[:, :, None]  # [batch, pos, 1]
