"""Errors in ULPs, counted by dtype and binade: is it rounding spread evenly, or one scale that is off?

A binade is the range between two powers of two; within one, every number of a dtype has the same spacing (one ULP).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from labkit.compare.difference import spacing

EDGES = (0.0, 1.0, 2.0, 4.0, 16.0, 256.0)
"""Upper ends of the counted ranges; a last one takes everything above, and what is not finite."""


@dataclass
class UlpHistogram:
    """Counts of errors by the binade of the expected value; one dtype.

    >>> histogram = UlpHistogram(torch.float32)
    >>> histogram.add(torch.tensor([1.0, 3.0 + 2**-21, 0.0]), torch.tensor([1.0, 3.0, 0.0]))
    >>> print(histogram)
    float32    ulp      0     <=1     <=2     <=4    <=16   <=256    >256
    zero                1       0       0       0       0       0       0
    2^0                 1       0       0       0       0       0       0
    2^1                 0       0       1       0       0       0       0
    """

    dtype: torch.dtype
    counts: dict[int | None, list[int]] = field(default_factory=dict)
    """Binade (None for an expected value of zero) -> how many errors fall into each range."""

    def add(self, actual: Tensor, expected: Tensor) -> None:
        """Count the elements of two tensors of one shape."""
        a, e = actual.double().flatten(), expected.double().flatten()  # [numel]
        error = (a - e).abs() / spacing(e.abs(), self.dtype)  # [numel]
        error = torch.where(a == e, 0.0, error).nan_to_num(nan=torch.inf)  # [numel]
        ranges = torch.bucketize(error, torch.tensor(EDGES, dtype=torch.float64))  # [numel]
        binades = torch.where(e == 0, _ZERO, torch.frexp(e).exponent - 1)  # [numel]
        width = len(EDGES) + 1
        keys, numbers = torch.unique(binades * width + ranges, return_counts=True)  # each [distinct]
        for key, number in zip(keys.tolist(), numbers.tolist(), strict=True):
            binade, place = divmod(key, width)
            row = self.counts.setdefault(None if binade == _ZERO else binade, [0] * width)
            row[place] += number

    def __str__(self) -> str:
        names = ["0", *(f"<={edge:g}" for edge in EDGES[1:]), f">{EDGES[-1]:g}"]
        lines = [f"{str(self.dtype).removeprefix('torch.'):<11}ulp" + _columns(names, first=7)]
        for binade in sorted(self.counts, key=lambda b: -(10**6) if b is None else b):
            label = "zero" if binade is None else f"2^{binade}"
            lines.append(f"{label:<14}" + _columns([str(n) for n in self.counts[binade]], first=7))
        return "\n".join(lines)


_ZERO = -(1 << 20)
"""Stands for the binade of zero while counting."""


def _columns(cells: list[str], *, first: int) -> str:
    return "".join(f"{cell:>{first if not place else 8}}" for place, cell in enumerate(cells))
