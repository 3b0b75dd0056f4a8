"""candidate taps, truth, measured floor -> for every stage: how far off, what rounding explains, and the verdict.

Two questions are asked of each stage. *Local*: does the operation, run in float64 on the candidate's own inputs, give
the candidate's output within the operation's own rounding? *Total*: does the candidate's value lie within what
rounding, its own and inherited, can do to the truth? A stage whose own operation is wrong differs locally; one that
was fed wrong inputs differs in total only.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from labkit.compare import Difference, measure
from labkit.compare.difference import unravel
from labkit.verification.budget import Expected, compared, expect, storage_uncertainty
from labkit.verification.chain import Inputs, Stage
from labkit.verification.precision import FLOOR_FACTOR, Precision

StageVerdict = Literal["same", "differs"]
Cause = Literal["", "local", "inherited", "non-finite"]
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
    verdict: StageVerdict
    cause: Cause


@dataclass(frozen=True)
class Floor:
    """What transformers' own runs show of rounding at one tap, in units of the propagated uncertainty."""

    share: float

    def budget(self, expected: Expected) -> Tensor:
        """The total budget, element by element."""
        return torch.maximum(FLOOR_FACTOR * self.share * expected.budget, expected.own)


@dataclass(frozen=True)
class Truth:
    """transformers in float64 on one prompt: taps, and the uncertainty that rounding in the engine's dtype carries along."""

    taps: Mapping[str, Tensor]
    expected: Mapping[str, Expected]
    chain_error: float
    """Largest disagreement of our chain with transformers on transformers' own taps; above ``CHAIN_TOLERANCE`` all is off."""


def propagate(stages: Sequence[Stage], taps: Mapping[str, Tensor], inputs: Inputs, precision: Precision) -> Truth:
    """Carry rounding's uncertainty along the chain from the truth's own values."""
    expected: dict[str, Expected] = {}
    chain_error = 0.0
    for stage in stages:
        values = tuple(taps[name] for name in stage.inputs)
        uncertain = tuple(expected[name].budget for name in stage.inputs)
        here = expect(stage, values, uncertain, precision)
        true = taps[stage.tap]
        off = torch.where(compared(stage.tap, inputs), (here.output - true).abs(), 0.0)
        chain_error = max(chain_error, float(off.max()) / max(float(true.abs().max()), 1e-300))
        expected[stage.tap] = Expected(true, here.own, here.inherited)
    return Truth(taps, expected, chain_error)


def measure_floor(truth: Truth, runs: Sequence[Mapping[str, Tensor]], inputs: Inputs) -> dict[str, Floor]:
    """How much of the propagated uncertainty transformers' own runs in the engine's dtype use, tap by tap."""
    floor = {}
    for tap, expected in truth.expected.items():
        mask = compared(tap, inputs)
        shares = [
            float(_share((run[tap].double() - expected.output).abs(), expected.budget, mask).max()) for run in runs
        ]
        floor[tap] = Floor(
            max(share for share in shares if math.isfinite(share)) if any(map(math.isfinite, shares)) else 0.0
        )
    return floor


def judge_stage(
    stage: Stage,
    candidate: Mapping[str, Tensor],
    truth: Truth,
    floor: Floor,
    inputs: Inputs,
    precision: Precision,
) -> StageResult:
    """The verdict on one stage of a candidate whose taps include the stage's inputs."""
    actual, expected = candidate[stage.tap], truth.expected[stage.tap]
    mask = compared(stage.tap, inputs)
    value = actual.double()
    difference = measure(value, expected.output, ulp_dtype=actual.dtype, where=mask)
    if not bool(torch.isfinite(torch.where(mask, value, 0.0)).all()):
        return _non_finite(stage, actual, difference)
    total = floor.budget(expected) + storage_uncertainty(expected.output, actual.dtype, precision)
    share = _share((value - expected.output).abs(), total, mask)
    place = int(share.argmax())
    local = expect_locally(stage, candidate, precision)
    local_budget = local.budget + storage_uncertainty(local.output, actual.dtype, precision)
    local_error = torch.where(mask, (value - local.output).abs(), 0.0)
    local_used = float(_share(local_error, local_budget, mask).max())
    used = float(share.flatten()[place])
    cause: Cause = "local" if local_used > 1 else "inherited" if used > 1 else ""
    return StageResult(
        name=stage.tap,
        shape=tuple(actual.shape),
        difference=difference,
        budget=float(total.expand_as(value).flatten()[place]),
        used=used,
        worst=unravel(place, tuple(actual.shape)),
        local_error=float(local_error.max()),
        local_used=local_used,
        verdict="differs" if cause else "same",
        cause=cause,
    )


def expect_locally(stage: Stage, candidate: Mapping[str, Tensor], precision: Precision) -> Expected:
    """What the stage's operation gives on the candidate's own recorded inputs."""
    values = tuple(candidate[name].double() for name in stage.inputs)
    uncertain = tuple(
        storage_uncertainty(value, candidate[name].dtype, precision)
        for name, value in zip(stage.inputs, values, strict=True)
    )
    return expect(stage, values, uncertain, precision)


def _share(error: Tensor, budget: Tensor, mask: Tensor) -> Tensor:
    """Error over budget; where the budget is zero any error is beyond all bounds."""
    share = torch.where(error > 0, error / budget, 0.0)
    return torch.where(mask.expand_as(share), share, 0.0)


def _non_finite(stage: Stage, actual: Tensor, difference: Difference) -> StageResult:
    place = int((~torch.isfinite(actual)).flatten().to(torch.int8).argmax())
    return StageResult(
        name=stage.tap,
        shape=tuple(actual.shape),
        difference=difference,
        budget=0.0,
        used=math.inf,
        worst=unravel(place, tuple(actual.shape)),
        local_error=math.inf,
        local_used=math.inf,
        verdict="differs",
        cause="non-finite",
    )
