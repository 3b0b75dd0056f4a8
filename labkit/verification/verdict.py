"""candidate taps, truth, measured floor -> for every stage: how far off, what rounding explains, and the verdict.

Two questions are asked of each stage. *Local*: does the operation, run in float64 on the candidate's own inputs, give
the candidate's output within the operation's own rounding? *Total*: does the candidate's value lie within what
rounding, its own and inherited, can do to the truth? A stage whose own operation is wrong differs locally; one that
was fed wrong inputs differs in total only.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from labkit.compare import Difference, measure
from labkit.compare.difference import unravel
from labkit.verification.budget import Expected, compared, expect, share_of, storage_uncertainty
from labkit.verification.chain import Inputs, Stage, unrecorded
from labkit.verification.precision import FLOOR_FACTOR, Precision

StageVerdict = Literal["same", "differs"]
Cause = Literal["", "local", "inherited", "non-finite", "shape", "pattern"]
"""Why a stage differs: by its own operation, by what it was fed, or only in the pattern of errors within the budget."""
CHAIN_TOLERANCE = 1e-11
"""The chain run on the truth's own float64 taps must give the truth again to this share of each stage's largest value."""


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """One stage of one prompt: error against the truth, error made here, and what rounding explains."""

    name: str
    shape: tuple[int, ...]
    difference: Difference
    budget: float
    """What rounding explains at the element where the error takes most of its budget."""
    used: float
    """The largest error over its budget; up to 1 is rounding."""
    worst: tuple[int, ...]
    """Where the error takes most of its budget."""
    local_error: float
    """The largest error made by this operation on the candidate's own inputs."""
    local_used: float
    local_rms: float
    """Root mean square of the error made here, in budgets."""
    local_worst: tuple[int, ...]
    verdict: StageVerdict
    cause: Cause

    @property
    def severity(self) -> tuple[bool, float]:
        """Orders the results of one stage over several prompts."""
        return self.verdict == "differs", max(self.used, self.local_used)


@dataclass
class Truth:
    """What the walk down the float64 run of transformers remembers for the stages to come."""

    budgets: dict[str, Tensor] = field(default_factory=dict)
    """By tap: what rounding so far may do to its true value, element by element."""
    chain_error: float = 0.0
    """Largest disagreement of the chain with transformers on transformers' own taps, relative to the stage's largest."""

    def keep(self, tap: str, parts: Sequence[Tensor]) -> None:
        """Remember a stage's budget, given whole or in pieces along the second axis."""
        self.budgets[tap] = parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)

    def forget(self, names: set[str]) -> None:
        """Drop what no later stage needs."""
        for name in names & self.budgets.keys():
            del self.budgets[name]


def true_stage(
    stage: Stage,
    taps: Mapping[str, Tensor],
    budgets: Mapping[str, Tensor],
    inputs: Inputs,
    precision: Precision,
) -> tuple[Expected, float]:
    """The stage's true value with what rounding so far may do to it, and how far the chain misses it (see ``Truth``).

    ``budgets``: those of the stage's inputs.
    """
    values = tuple(taps[name] for name in stage.inputs)
    here = expect(stage, values, tuple(budgets[name] for name in stage.inputs), precision)
    true = taps[stage.tap]
    off = torch.where(compared(stage.tap, inputs), (here.output - true).abs(), 0.0)
    return replace(here, output=true), float(off.max()) / max(float(true.abs().max()), 1e-300)


def true_values(
    stages: Mapping[str, Stage], taps: Mapping[str, Tensor], inputs: Inputs, precision: Precision
) -> dict[str, Expected]:
    """The true value of every stage with what rounding so far may do to it, all kept in memory."""
    expected: dict[str, Expected] = {}
    budgets: dict[str, Tensor] = {}
    for tap, stage in stages.items():
        expected[tap], _ = true_stage(stage, taps, budgets, inputs, precision)
        budgets[tap] = expected[tap].budget
    return expected


FEW_ERRORS = 64
"""Errors that a floor is measured on at least: the largest of fewer, which depend on each other, may be tiny by luck."""


@dataclass(frozen=True)
class Floor:
    """What transformers' own runs show of rounding at one tap: the largest share of the propagated uncertainty."""

    share: float
    errors: int = 0
    """Elements that were not exactly right, in all runs together."""

    @classmethod
    def measure(cls, tap: str, expected: Expected, runs: Sequence[Tensor], inputs: Inputs) -> "Floor":
        """From the same tap of several runs in the engine's dtype."""
        mask, parts = compared(tap, inputs), []
        for run in runs:
            needed = expected.needed((run.double() - expected.output).abs())
            seen = torch.where(mask.expand_as(needed), needed, 0.0)
            share = float(seen.max())
            parts.append(cls(share if math.isfinite(share) else 0.0, int((seen > 0).sum())))
        return cls.merged(parts)

    @classmethod
    def merged(cls, parts: Iterable["Floor"]) -> "Floor":
        """Of several runs, pieces or taps."""
        parts = list(parts)
        return cls(max(part.share for part in parts), sum(part.errors for part in parts))

    def budget(self, expected: Expected) -> Tensor:
        """The total budget, element by element."""
        return torch.maximum(expected.scaled(FLOOR_FACTOR * self.share), expected.own)


def pooled(floors: Mapping[str, Floor]) -> dict[str, Floor]:
    """The floors of all taps in order; one that was measured on few errors takes in the taps before it, nearest first."""
    measured, pools = list(floors.values()), {}
    for place, tap in enumerate(floors):
        pool = measured[place]
        for before in reversed(measured[:place]):
            if pool.errors >= FEW_ERRORS:
                break
            pool = Floor.merged((pool, before))
        pools[tap] = pool
    return pools


@dataclass(frozen=True)
class Weighed:
    """One stage of a candidate on the scales: its value, the truth's, what it gives locally, and both budgets."""

    stage: Stage
    actual: Tensor
    expected: Tensor
    total: Tensor
    local: Tensor
    local_budget: Tensor
    mask: Tensor

    def verdict(self) -> StageResult:
        """Read the scales."""
        if self.actual.shape != self.expected.shape:
            nowhere = Difference.impossible(self.actual.numel())
            return self._result(nowhere, 0.0, math.inf, (), math.inf, math.inf, math.inf, (), "shape")
        value = self.actual.double()
        difference = measure(value, self.expected, ulp_dtype=self.actual.dtype, where=self.mask)
        shape = tuple(self.actual.shape)
        bad = ~torch.isfinite(torch.where(self.mask, value, 0.0))
        if bool(bad.any()):
            at = unravel(int(bad.flatten().to(torch.int8).argmax()), shape)
            return self._result(difference, 0.0, math.inf, at, math.inf, math.inf, math.inf, at, "non-finite")
        error = torch.where(self.mask, (value - self.expected).abs(), 0.0)
        share = share_of(error, self.total, self.mask)
        local_error = torch.where(self.mask, (value - self.local).abs(), 0.0)
        local_share = share_of(local_error, self.local_budget, self.mask)
        place, local_place = _worst(share, error), _worst(local_share, local_error)
        used, local_used = float(share.flatten()[place]), float(local_share.flatten()[local_place])
        return self._result(
            difference,
            float(self.total.expand_as(value).flatten()[place]),
            used,
            unravel(place, shape),
            float(local_error.max()),
            local_used,
            float(local_share[self.mask.expand_as(local_share)].square().mean().sqrt()),
            unravel(local_place, shape),
            "local" if local_used > 1 else "inherited" if used > 1 else "",
        )

    def _result(
        self,
        difference: Difference,
        budget: float,
        used: float,
        worst: tuple[int, ...],
        local_error: float,
        local_used: float,
        local_rms: float,
        local_worst: tuple[int, ...],
        cause: Cause,
    ) -> StageResult:
        return StageResult(
            name=self.stage.tap,
            shape=tuple(self.actual.shape),
            difference=difference,
            budget=budget,
            used=used,
            worst=worst,
            local_error=local_error,
            local_used=local_used,
            local_rms=local_rms,
            local_worst=local_worst,
            verdict="differs" if cause else "same",
            cause=cause,
        )


def weigh(
    stage: Stage,
    stages: Mapping[str, Stage],
    candidate: Mapping[str, Tensor],
    expected: Expected,
    floor: Floor,
    inputs: Inputs,
    precision: Precision,
) -> Weighed:
    """Put one stage that the candidate recorded on the scales; ``stages`` is the whole chain by tap."""
    actual = candidate[stage.tap]
    try:
        local = expect_locally(stage, stages, candidate, precision)
    except RuntimeError:  # inputs of wrong shapes, told of where they were made: nothing can be said of this operation
        local = Expected(actual.double(), torch.ones(()), torch.zeros(()))
    if local.output.shape != actual.shape:
        local = Expected(actual.double(), torch.ones(()), torch.zeros(()))
    return Weighed(
        stage=stage,
        actual=actual,
        expected=expected.output,
        total=floor.budget(expected) + storage_uncertainty(expected.output, actual.dtype, precision),
        local=local.output,
        local_budget=local.budget + storage_uncertainty(local.output, actual.dtype, precision),
        mask=compared(stage.tap, inputs),
    )


def expect_locally(
    stage: Stage, stages: Mapping[str, Stage], candidate: Mapping[str, Tensor], precision: Precision
) -> Expected:
    """What the stage gives on the candidate's own inputs.

    Where an input was not recorded it is computed from its own inputs in turn, back to the nearest recorded ancestors,
    and what rounding may do on the way is carried along.
    """
    return expect_between(stage, stages, candidate, precision)[stage.tap]


def expect_between(
    stage: Stage, stages: Mapping[str, Stage], candidate: Mapping[str, Tensor], precision: Precision
) -> dict[str, Expected]:
    """As ``expect_locally``, with the stages between the nearest recorded ancestors and this one."""
    made: dict[str, Expected] = {}
    for name in (*unrecorded(stage, stages, candidate), stage.tap):
        values, uncertain = [], []
        for source in stages[name].inputs:
            if source in candidate:
                value = candidate[source].double()
                values.append(value)
                uncertain.append(storage_uncertainty(value, candidate[source].dtype, precision))
            else:
                values.append(made[source].output)
                uncertain.append(made[source].budget)
        made[name] = expect(stages[name], tuple(values), tuple(uncertain), precision)
    return made


def _worst(share: Tensor, error: Tensor) -> int:
    """The flat place of the largest share; of several, as where the budget is zero, that of the largest error."""
    return int(torch.where(share == share.max(), error, -1.0).argmax())


def merge_results(parts: Sequence[StageResult]) -> StageResult:
    """One stage over several prompts or pieces: the worst of each figure with its place, the cause of the most severe."""
    severest = max(parts, key=lambda part: part.severity)
    total = max(parts, key=lambda part: (part.used, part.difference.max_abs))
    local = max(parts, key=lambda part: (part.local_used, part.local_error))
    largest = max(parts, key=lambda part: part.difference.max_abs).difference
    return replace(
        severest,
        difference=replace(
            largest,
            max_rel=max(part.difference.max_rel for part in parts),
            ulp=max(part.difference.ulp for part in parts),
            numel=sum(part.difference.numel for part in parts),
            non_finite=sum(part.difference.non_finite for part in parts),
            equal=all(part.difference.equal for part in parts),
        ),
        budget=total.budget,
        used=total.used,
        worst=total.worst,
        local_error=max(part.local_error for part in parts),
        local_used=local.local_used,
        local_worst=local.local_worst,
        local_rms=max(part.local_rms for part in parts),
    )
