"""What one invariant gave: held, broken or not applicable, with the numbers and the place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

InvariantVerdict = Literal["held", "broken", "not applicable"]


@dataclass(frozen=True, kw_only=True)
class InvariantResult:
    """One invariant of one engine.

    >>> print(not_applicable("cache", "the engine was given without a cached run"))
    cache: not applicable, the engine was given without a cached run
    """

    name: str
    verdict: InvariantVerdict
    detail: str
    where: str | None = None
    """The first tap, in order of computation, at which it is broken; where it held, the tap nearest to its budget."""
    place: tuple[int, ...] = ()
    """Index of the worst element of that tap."""
    error: float = 0.0
    """How far that element is from what the invariant asks for."""
    budget: float = 0.0
    """What rounding explains there; 0 where equality bit for bit was asked for."""
    used: float = 0.0
    """The error over its budget: rounding up to 1."""

    def __str__(self) -> str:
        return f"{self.name}: {self.verdict}, {self.detail}"


def not_applicable(name: str, reason: str) -> InvariantResult:
    """The result of an invariant that this engine or input says nothing about."""
    return InvariantResult(name=name, verdict="not applicable", detail=reason)


def merge_invariants(parts: Sequence[InvariantResult]) -> InvariantResult:
    """One invariant over several prompts: broken where any is, else the one that took most of its budget."""
    order: dict[str, int] = {"not applicable": 0, "held": 1, "broken": 2}
    return max(parts, key=lambda part: (order[part.verdict], part.used if math.isfinite(part.used) else math.inf))


def return_code(results: Sequence[InvariantResult]) -> int:
    """0 where none is broken, 1 where one is, 2 where none could be asked."""
    verdicts = {result.verdict for result in results}
    return 1 if "broken" in verdicts else 0 if "held" in verdicts else 2
