"""How one element comes about, as a record: a sum of products, each with its factors and where each weight lies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """Where one weight lies: bytes [begin, end) of a file."""

    file: str
    begin: int
    end: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.file} {self.begin} ({self.dtype})"


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One value that is read: a tap's element, a weight, or a quantity worked out before."""

    label: str
    value: float
    place: Bytes | None = None


@dataclass(frozen=True, kw_only=True)
class Term:
    """One summand: the product of its factors."""

    factors: tuple[Factor, ...]

    @property
    def value(self) -> float:
        """The product, in float64."""
        return math.prod(factor.value for factor in self.factors)


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """How one element comes about; ``held`` is what the run or the trace holds there, None where it holds nothing."""

    element: str
    axes: tuple[str, ...]
    engine: str
    formula: str
    before: tuple[Factor, ...]
    """What is worked out first, such as a norm's mean."""
    terms: tuple[Term, ...]
    held: float | None
    unit: float
    """The unit roundoff of the dtype that the engine computes in."""

    @property
    def value(self) -> float:
        """The sum of the terms, in float64."""
        return total_of([term.value for term in self.terms])

    @property
    def magnitude(self) -> float:
        """The sum of the terms' sizes: what rounding errors grow with."""
        return total_of([abs(term.value) for term in self.terms])

    def largest(self, count: int) -> tuple[Term, ...]:
        """So many terms, by size."""
        return tuple(sorted(self.terms, key=lambda term: -abs(term.value))[:count])


def total_of(values: Sequence[float]) -> float:
    """The exact sum, rounded once; not a number where the values are not finite."""
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
