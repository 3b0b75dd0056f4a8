"""Two runs' taps on the positions that must agree -> the first tap that does not, or the one nearest to its budget."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labkit.compare.difference import unravel
from labkit.verification.budget import share_of
from labkit.verification.invariants.engine import Taps


@dataclass(frozen=True)
class Sameness:
    """How well two runs agree over several taps."""

    taps: int
    where: str | None
    place: tuple[int, ...]
    error: float
    budget: float
    used: float

    @property
    def bitwise(self) -> bool:
        """Whether every element is equal."""
        return self.error == 0.0 and not math.isinf(self.used)

    def describe(self) -> str:
        """The outcome in words."""
        taps = "the logits" if self.taps == 1 else f"all {self.taps} taps"
        if self.bitwise:
            return f"{taps} equal bit for bit"
        if self.used <= 1:
            return f"{taps} equal within rounding ({self.used:.2f} of it, at {self.where})"
        if math.isnan(self.error):
            return f"{self.where} is not finite at {list(self.place)}"
        allowed = f"rounding explains {self.budget:.2e}" if self.budget else "equality is due"
        return f"{self.where} differs by {self.error:.2e} at {list(self.place)}, where {allowed}"


def sameness(actual: Taps, expected: Taps, budgets: Taps | None) -> Sameness:
    """Hold one row's taps, cut to the positions that must agree, against another's; tap by tap.

    ``budgets`` of None asks for equality bit for bit.
    """
    nearest = Sameness(0, None, (), 0.0, 0.0, 0.0)
    names = [name for name in expected if name in actual]
    for tap in names:
        a, e = actual[tap].double(), expected[tap].double()
        allowed = torch.zeros(()) if budgets is None else budgets[tap]
        here = _held(tap, a, e, allowed.expand(e.shape))
        if here.used > 1:
            return here
        nearest = max(nearest, here, key=lambda each: (each.used, each.error))
    return replace(nearest, taps=len(names))


def _held(tap: str, actual: Tensor, expected: Tensor, allowed: Tensor) -> Sameness:
    bad = ~torch.isfinite(actual) | ~torch.isfinite(expected)
    if bool(bad.any()):
        place = unravel(int(bad.flatten().to(torch.int8).argmax()), tuple(actual.shape))
        return Sameness(1, tap, place, math.nan, 0.0, math.inf)
    error = (actual - expected).abs()
    share = share_of(error, allowed)
    worst = int(share.argmax())
    return Sameness(
        1,
        tap,
        unravel(worst, tuple(error.shape)),
        float(error.flatten()[worst]),
        float(allowed.flatten()[worst]),
        float(share.flatten()[worst]),
    )
