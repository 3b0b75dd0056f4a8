"""A clean run that must pass and small faults that must fail, before any verdict counts."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from labkit.verification.budget import compared
from labkit.verification.chain import Inputs, Stage
from labkit.verification.precision import Precision
from labkit.verification.report import Controls
from labkit.verification.verdict import CHAIN_TOLERANCE, Floor, Truth, expect_locally, judge_stage

PLANTED_SIZE = 4.0
"""Size of the planted fault, in budgets of the element it is planted at."""


def run_controls(
    stages: Sequence[Stage],
    clean: Mapping[str, Tensor],
    truth: Truth,
    floor: Mapping[str, Floor],
    inputs: Inputs,
    precision: Precision,
) -> Controls:
    """Judge ``clean`` (transformers in an order that set no budget), then the same with a fault at each stage in turn."""
    results = [judge_stage(stage, clean, truth, floor[stage.tap], inputs, precision) for stage in stages]
    missed = []
    for stage in stages:
        spoiled = {**clean, stage.tap: _spoil(stage, clean, truth, floor[stage.tap], inputs, precision)}
        if judge_stage(stage, spoiled, truth, floor[stage.tap], inputs, precision).verdict == "same":
            missed.append(stage.tap)
    strays = max(floor, key=lambda tap: floor[tap].share)
    return Controls(
        chain_error=truth.chain_error,
        chain_holds=truth.chain_error <= CHAIN_TOLERANCE,
        reference_used=floor[strays].share,
        reference_strays_at=strays if floor[strays].share > 1 else None,
        clean_used=max(max(result.used, result.local_used) for result in results),
        clean_accused=tuple(result.name for result in results if result.verdict == "differs"),
        planted=len(stages),
        planted_missed=tuple(missed),
    )


def _spoil(
    stage: Stage, clean: Mapping[str, Tensor], truth: Truth, floor: Floor, inputs: Inputs, precision: Precision
) -> Tensor:
    """The stage's value with one element moved by a few budgets, or by one step where the budget is zero."""
    value = clean[stage.tap]
    allowed = compared(stage.tap, inputs).expand(value.shape).flatten().nonzero().flatten()
    place = int(allowed[len(allowed) // 2])
    total = floor.budget(truth.expected[stage.tap]).expand(value.shape).flatten()[place]
    local = expect_locally(stage, clean, precision).budget.expand(value.shape).flatten()[place]
    spoiled = value.clone().flatten()
    old = spoiled[place]
    new = (old.double() + PLANTED_SIZE * torch.maximum(total, local)).to(value.dtype)
    spoiled[place] = new if new != old else torch.nextafter(old.float(), torch.tensor(torch.inf)).to(value.dtype)
    if spoiled[place] == old:
        spoiled[place] = old * (1 + 2 * torch.finfo(value.dtype).eps)
    return spoiled.view_as(value)
