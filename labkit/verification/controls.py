"""A clean run that must pass and small faults that must fail, before any verdict counts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labkit.verification.verdict import CHAIN_TOLERANCE, Floor, StageResult, Truth, Weighed

PLANTED_SIZE = 4.0
"""Size of the planted fault, in budgets of the element it is planted at."""


@dataclass(frozen=True, kw_only=True)
class Controls:
    """Whether the checks themselves can be trusted on these prompts."""

    chain_error: float
    """The chain of operations on transformers' own float64 taps, relative to each stage's largest value."""
    chain_holds: bool
    reference_used: float
    """The most of the rounding bound that transformers' own run takes anywhere; above 1 it strays from the truth."""
    reference_strays_at: str | None
    clean_used: float
    """The most of the budget that transformers takes when summed in an order that set no budget."""
    clean_accused: tuple[str, ...]
    """Stages of that clean run that were called different; there must be none."""
    clean_not_finite_at: str | None
    """The first stage at which that clean run itself holds a NaN or an infinity."""
    planted: int
    """Small faults planted, one at every stage."""
    planted_missed: tuple[str, ...]
    """Stages whose planted fault was not seen; there must be none."""

    @property
    def failures(self) -> tuple[str, ...]:
        """Why no verdict can be given, in words; empty where all controls hold."""
        reasons = []
        if not self.chain_holds:
            reasons.append(f"labkit's chain of operations misses transformers' float64 run by {self.chain_error:.1e}")
        if self.reference_strays_at is not None:
            reasons.append(
                f"transformers' own run strays {self.reference_used:.2g} times beyond the rounding bound "
                f"at {self.reference_strays_at}"
            )
        if self.clean_accused:
            reasons.append(f"a clean run in another summation order was accused at {', '.join(self.clean_accused)}")
        if self.clean_not_finite_at is not None:
            reasons.append(
                f"transformers' own run in the same dtypes is not finite from {self.clean_not_finite_at} on, "
                "so that no engine can be judged there"
            )
        if self.planted_missed:
            reasons.append(f"a small planted fault was missed at {', '.join(self.planted_missed)}")
        return tuple(reasons)


class ControlWalk:
    """The controls, stage by stage, as the walk down the chain comes to them."""

    def __init__(self, floor: Mapping[str, Floor]) -> None:
        self._floor = floor
        self._clean_used = 0.0
        self._accused: list[str] = []
        self._not_finite: list[str] = []
        self._missed: list[str] = []
        self._planted = 0

    def check(self, clean: Weighed) -> StageResult:
        """``clean``: transformers in an order that set no budget; it must pass, and fail once a fault is planted."""
        result = clean.verdict()
        if result.cause == "non-finite":
            self._not_finite.append(result.name)
            return result
        self._clean_used = max(self._clean_used, result.used, result.local_used)
        if result.verdict == "differs":
            self._accused.append(result.name)
        self._planted += 1
        if replace(clean, actual=_spoil(clean)).verdict().verdict == "same":
            self._missed.append(result.name)
        return result

    def summary(self, truth: Truth) -> Controls:
        """All controls of one prompt."""
        strays = max(self._floor, key=lambda tap: self._floor[tap].share)
        share = self._floor[strays].share
        return Controls(
            chain_error=truth.chain_error,
            chain_holds=truth.chain_error <= CHAIN_TOLERANCE,
            reference_used=share,
            reference_strays_at=strays if share > 1 else None,
            clean_used=self._clean_used,
            clean_accused=tuple(dict.fromkeys(self._accused)),
            clean_not_finite_at=next(iter(self._not_finite), None),
            planted=self._planted,
            planted_missed=tuple(dict.fromkeys(self._missed)),
        )


def _spoil(clean: Weighed) -> Tensor:
    """The value with one element moved by a few budgets, or by one step where the budget is zero."""
    value = clean.actual
    allowed = clean.mask.expand(value.shape).flatten().nonzero().flatten()
    place = int(allowed[len(allowed) // 2])
    budgets = (budget.expand(value.shape).flatten()[place] for budget in (clean.total, clean.local_budget))
    spoiled = value.clone().flatten()
    old = spoiled[place].clone()
    spoiled[place] = (old.double() + PLANTED_SIZE * torch.maximum(*budgets)).to(value.dtype)
    if spoiled[place] == old:
        spoiled[place] = torch.nextafter(old, torch.full_like(old, torch.inf))
    return spoiled.view_as(value)


def merge_controls(parts: Sequence[Controls]) -> Controls:
    """The worst of several prompts."""
    strays = max(parts, key=lambda part: part.reference_used)
    return Controls(
        chain_error=max(part.chain_error for part in parts),
        chain_holds=all(part.chain_holds for part in parts),
        reference_used=strays.reference_used,
        reference_strays_at=strays.reference_strays_at,
        clean_used=max(part.clean_used for part in parts),
        clean_accused=tuple(dict.fromkeys(name for part in parts for name in part.clean_accused)),
        clean_not_finite_at=next((part.clean_not_finite_at for part in parts if part.clean_not_finite_at), None),
        planted=sum(part.planted for part in parts),
        planted_missed=tuple(dict.fromkeys(name for part in parts for name in part.planted_missed)),
    )


class AsRecorded(Mapping[str, Tensor]):
    """A clean run's taps as the candidate's were recorded: the same ones and no more, rounded to the same dtypes."""

    def __init__(self, clean: Mapping[str, Tensor], candidate: Mapping[str, Tensor], names: set[str]) -> None:
        self._clean = clean
        self._candidate = candidate
        self._names = names

    def __getitem__(self, name: str) -> Tensor:
        return self._clean[name].to(self._candidate[name].dtype)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._clean if name in self._names)

    def __len__(self) -> int:
        return len(self._names)
