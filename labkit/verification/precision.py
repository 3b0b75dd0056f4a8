"""What an engine says of its arithmetic, and the constants that turn rounding into a budget.

An error budget is never guessed. Rounding each of K products and sums of a dot product to a unit roundoff u leaves an
error that grows like sqrt(K) u |x|.|W| where the signs are random (Higham and Mary, 2019), while the certain bound
K u |x|.|W| is hundreds of times too loose at K = 768. The two factors below scale the statistical bound and the
measured floor; `labkit.verification.calibration` fits them and states how often a clean run would be accused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.errors import TraceError

PRODUCT_FACTOR = 3.0
"""c2: times sqrt(K) u |x|.|W| gives the budget of one operation's own rounding."""

SINGLE_FACTOR = 1.5
"""Times u and the size of a value that is rounded once (or the counted few times): half a unit more than the bound."""

FLOOR_FACTOR = 8.0
"""c1: times the measured floor (the largest that transformers' own runs show) gives the budget of an inherited error."""

INPUT_FACTOR = 3.0
"""A recorded input is off by at most u times its size; sums of many such errors reach about three times their spread."""

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the gap between 1 and the next number: the largest relative error of rounding to nearest.

    >>> unit_roundoff(torch.float32) == 2**-24, unit_roundoff(torch.bfloat16) == 2**-8
    (True, True)
    """
    return float(torch.finfo(dtype).eps) / 2


def held_in(value: Tensor, dtype: torch.dtype) -> Tensor:
    """bool, of the value's shape: the elements that ``dtype`` holds as they are."""
    return value.to(dtype).to(value.dtype) == value


def dtype_name(dtype: torch.dtype) -> str:
    """What a dtype is called in a trace's metadata.

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str, *, where: object = None) -> torch.dtype:
    """The torch dtype of a name such as ``float32``; raises ``TraceError`` for another."""
    if not isinstance(name, str) or name not in DTYPES:
        raise TraceError(f"unknown dtype {name!r}", where=where, expected=", ".join(DTYPES))
    return DTYPES[name]


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The dtypes an engine declares: of its arithmetic, of its sums, and of its weights."""

    compute: torch.dtype = torch.float32
    accumulate: torch.dtype = torch.float32
    weight: torch.dtype = torch.float32

    @classmethod
    def of(cls, dtype: torch.dtype) -> "Precision":
        """All three in one dtype, but sums in float32 where that is wider (as matrix units do)."""
        wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        return cls(compute=dtype, accumulate=wide, weight=dtype)

    def describe(self) -> str:
        """The three dtypes in words."""
        compute, accumulate, weight = map(dtype_name, (self.compute, self.accumulate, self.weight))
        return compute if compute == accumulate == weight else f"{compute} (sums {accumulate}, weights {weight})"


SHORT_SUMS = (
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_reduced_precision_reduction",
    "allow_fp16_accumulation",
)
"""torch's switches that let CUDA round a product's partial sums to its operands' dtype; two of the three are on."""


@contextmanager
def sums_in_float32() -> Iterator[None]:
    """While it is on, CUDA adds up products of short dtypes in float32 throughout, as ``Precision.of`` declares."""
    switches = torch.backends.cuda.matmul
    before = {name: getattr(switches, name) for name in SHORT_SUMS}
    try:
        for name in SHORT_SUMS:
            setattr(switches, name, False)
        yield
    finally:
        for name, value in before.items():
            setattr(switches, name, value)
