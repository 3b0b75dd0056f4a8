"""actual, expected -> one ``Difference``: finiteness, largest absolute and relative error, ULPs, and where.

In the fixed order of all reports: shape, dtype, finiteness, values. Everything is computed in float64, never in the
dtype under test.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.errors import ArgumentError

if TYPE_CHECKING:
    import torch

NEAR_ZERO = 1 / 8
"""An element smaller than this share of its row's largest is measured in units of the row's largest."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far ``actual`` lies from ``expected``.

    ``max_rel`` and ``ulp`` take each element's own size as the unit, but for an element under an eighth of its row's
    largest (a row is the last axis) the row's largest: a relative error near zero says nothing.
    """

    max_abs: float
    max_rel: float
    ulp: float
    mean_abs: float
    worst: tuple[int, ...]
    """Index of the largest absolute error."""
    actual_at_worst: float
    expected_at_worst: float
    numel: int
    non_finite: int
    """Elements where either side is NaN or infinite and the two are not the same."""
    equal: bool
    """Every element compared is equal by value."""

    @classmethod
    def impossible(cls, numel: int) -> "Difference":
        """For two tensors that cannot be compared at all: of different shapes."""
        return cls(
            max_abs=math.inf,
            max_rel=math.inf,
            ulp=math.inf,
            mean_abs=math.inf,
            worst=(),
            actual_at_worst=math.nan,
            expected_at_worst=math.nan,
            numel=numel,
            non_finite=0,
            equal=False,
        )


def measure(
    actual: "torch.Tensor",
    expected: "torch.Tensor",
    *,
    ulp_dtype: "torch.dtype | None" = None,
    where: "torch.Tensor | None" = None,
) -> Difference:
    """The difference of two tensors of one shape, over the elements where the mask ``where`` is true.

    ``ulp_dtype`` is the floating dtype whose spacing is one ULP (default: ``actual``'s).
    Raises ``ArgumentError`` where the shapes differ.

    >>> import torch
    >>> d = measure(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 2**-22]))
    >>> d.ulp, d.worst, d.equal
    (1.0, (1,), False)
    """
    import torch

    if actual.shape != expected.shape:
        raise ArgumentError("the shapes differ", expected=list(expected.shape), got=list(actual.shape))
    dtype = ulp_dtype or (actual.dtype if actual.dtype.is_floating_point else torch.float32)
    a = actual.detach().to(torch.float64)
    e = expected.detach().to(torch.float64)
    finite = torch.isfinite(a) & torch.isfinite(e)
    same = (a == e) | (torch.isnan(a) & torch.isnan(e))
    counted = torch.ones_like(finite) if where is None else where.expand(a.shape)
    error = torch.where(finite & counted, (a - e).abs(), torch.zeros_like(a))
    unit = _unit(torch.where(finite & counted, e, torch.zeros_like(e)))
    worst = int(error.argmax()) if error.numel() else 0
    numel = int(counted.sum())
    return Difference(
        max_abs=float(error.max()) if error.numel() else 0.0,
        max_rel=float(torch.where(error > 0, error / unit, 0.0).max()) if error.numel() else 0.0,
        ulp=float(torch.where(error > 0, error / spacing(unit, dtype), 0.0).max()) if error.numel() else 0.0,
        mean_abs=float(error.sum() / max(numel, 1)),
        worst=unravel(worst, tuple(a.shape)) if error.numel() else (),
        actual_at_worst=float(a.flatten()[worst]) if error.numel() else 0.0,
        expected_at_worst=float(e.flatten()[worst]) if error.numel() else 0.0,
        numel=numel,
        non_finite=int((~finite & ~same & counted).sum()),
        equal=bool((same | ~counted).all()),
    )


def _unit(expected: "torch.Tensor") -> "torch.Tensor":
    """The size that one element's error is held against."""
    import torch

    size = expected.abs()
    if not size.numel() or not size.dim():
        return size
    largest = size.amax(dim=-1, keepdim=True).expand_as(size)
    return torch.where(size < NEAR_ZERO * largest, largest, size)


def spacing(size: "torch.Tensor", dtype: "torch.dtype") -> "torch.Tensor":
    """The gap between neighbours of ``dtype`` at each size (one ULP), in float64.

    >>> import torch
    >>> spacing(torch.tensor([1.0, 3.0], dtype=torch.float64), torch.bfloat16).tolist()
    [0.0078125, 0.015625]
    """
    import torch

    info = torch.finfo(dtype)
    exponent = torch.frexp(torch.clamp(size.to(torch.float64), min=info.tiny)).exponent - 1
    return info.eps * torch.exp2(exponent.to(torch.float64))


def unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The coordinates of a flat position.

    >>> unravel(5, (2, 3))
    (1, 2)
    """
    index: list[int] = []
    for size in reversed(shape):
        flat, here = divmod(flat, size)
        index.append(here)
    return tuple(reversed(index))
