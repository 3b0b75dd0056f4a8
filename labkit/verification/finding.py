"""What is wrong at one place: the record, its two forms that need no replay, and how those of several prompts join.

A tap of the wrong shape, and one that holds a NaN or an infinity, are findings by themselves: no mistake is run on them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from labkit.verification.hypotheses import Scene, site_of
from labkit.verification.precision import dtype_name
from labkit.verification.trace_layout import advise
from labkit.verification.verdict import expect_locally

CauseKind = Literal["named", "tie", "unknown", "shape", "non-finite"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fault: where, the cause, the evidence in numbers, and what to do next."""

    where: str
    """The tap at which it shows by itself."""
    span: tuple[str, ...]
    """The stages it may lie in: more than one where taps between were not recorded."""
    kind: CauseKind
    cause: str | None
    """The name of the hypothesis; None where there is none or more than one."""
    home: str | None
    """The stage at which the named mistake was made: before ``where`` if that stage was not recorded."""
    candidates: tuple[str, ...]
    """The names that fit: one where named, several where tied, none where unknown."""
    text: str
    error_right: float
    """Largest error against the right operation on the candidate's own inputs."""
    error_replayed: float | None
    """Largest error against the hypothesis on the same inputs."""
    share_right: float
    share_replayed: float | None
    tensors: tuple[str, ...]
    next_step: str
    next_tap: str | None = None
    """The tap that ``next_step`` asks for, if it does."""

    def __str__(self) -> str:
        if math.isinf(self.error_right):  # no shape and no NaN is off by a number
            return f"{self.where}: {self.text}; {self.next_step}"
        replayed = "" if self.error_replayed is None else f", replayed {self.error_replayed:.2e}"
        return f"{self.where}: {self.text} (error as it should be {self.error_right:.2e}{replayed}); {self.next_step}"


def misshapen(scene: Scene, where: str, expected: tuple[int, ...]) -> Finding:
    """The finding for a tap of the wrong shape; half or twice the heads are called by their name."""
    actual = tuple(scene.candidate[where].shape)
    config, name, text = scene.config, None, f"its shape is {list(actual)} instead of {list(expected)}"
    heads = len(actual) == 4 and site_of(where) in ("attn.qkv", "attn.z") and actual[1] * actual[3] == config.n_embd
    if heads and actual[1] != config.n_head and actual[2] == expected[2]:
        name, text = "wrong-head-count", f"n_embd is split into {actual[1]} heads instead of {config.n_head}"
    return Finding(
        where=where,
        span=(where,),
        kind="named" if name else "shape",
        cause=name,
        home=where if name else None,
        candidates=(name,) if name else (),
        text=text if name is None else f"{text} [{name}]",
        error_right=math.inf,
        error_replayed=0.0 if name else None,
        share_right=math.inf,
        share_replayed=0.0 if name else None,
        tensors=scene.stages[where].tensors,
        next_step=f"correct the shape of {where}: {advise(where, actual, [expected]) or 'no transpose or reshape gives it'}",
    )


def non_finite(scene: Scene, where: str, at: tuple[int, ...]) -> Finding:
    """The finding for a tap that holds a NaN or an infinity where its inputs hold none; an overflow is called one."""
    recorded, stages = scene.candidate[where], scene.stages
    true = expect_locally(stages[where], stages, scene.candidate, scene.precision).output.expand(recorded.shape)[at]
    text = f"it holds {float(recorded[at])} at {list(at)}"
    narrow = _overflown(float(true), scene.precision.compute, recorded.dtype)
    if narrow is None:
        text += ", and its inputs are finite"
        following = "look for an overflow, a division by zero or an uninitialised buffer there"
    else:
        name, largest = dtype_name(narrow), torch.finfo(narrow).max
        text += f", an overflow: it should be {float(true):.3g}, and {name} ends at {largest:.6g}"
        following = f"{'compute' if narrow == scene.precision.compute else 'store'} in a dtype with a wider range there"
    return Finding(
        where=where,
        span=(where,),
        kind="non-finite",
        cause=None,
        home=None,
        candidates=(),
        text=text,
        error_right=math.inf,
        error_replayed=None,
        share_right=math.inf,
        share_replayed=None,
        tensors=stages[where].tensors,
        next_step=following,
    )


def _overflown(value: float, *dtypes: torch.dtype) -> torch.dtype | None:
    """The first of the dtypes that does not reach as far as the value."""
    return next((dtype for dtype in dtypes if math.isfinite(value) and abs(value) > torch.finfo(dtype).max), None)


def merge_findings(parts: Sequence[Sequence[Finding]], order: Sequence[str]) -> tuple[Finding, ...]:
    """The findings of several prompts, one a place: what ties on one prompt may be told apart on another."""
    by_place: dict[str, list[Finding]] = {}
    for part in parts:
        for finding in part:
            by_place.setdefault(finding.where, []).append(finding)
    merged = []
    for where in sorted(by_place, key=order.index):
        group = by_place[where]
        best = min(group, key=lambda finding: (not finding.candidates, len(finding.candidates)))
        sets = [set(finding.candidates) for finding in group if finding.candidates]
        common = set.intersection(*sets) if sets else set()
        told_apart = best.kind == "tie" and 0 < len(common) < len(best.candidates)
        merged.append(_narrowed(best, common) if told_apart else best)
    return tuple(merged)


def _narrowed(finding: Finding, common: set[str]) -> Finding:
    kept = tuple(name for name in finding.candidates if name in common)
    named = len(kept) == 1
    home = finding.where if named and len(finding.span) == 1 else None
    text = f"of those that tie here, all prompts together leave {', '.join(kept)}"
    return replace(
        finding,
        candidates=kept,
        kind="named" if named else "tie",
        cause=kept[0] if named else None,
        home=home,
        text=text,
        next_step=f"correct this where your engine computes {finding.where}, and run again"
        if named
        else finding.next_step,
        next_tap=None if named else finding.next_tap,
    )
