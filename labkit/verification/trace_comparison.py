"""What a comparison of two traces found: tensor by tensor, and in a sentence."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from labkit.compare import Difference
from labkit.verification.report import RETURN_CODES, Report, Verdict
from labkit.verification.trace_names import INPUT_NAMES, described, split_step
from labkit.verification.ulps import UlpHistogram
from labkit.words import counted

Rule = Literal["atol", "estimate", "checkpoint"]
Problem = Literal["", "missing", "extra", "shape", "non-finite", "values"]


@dataclass(frozen=True, kw_only=True)
class TapComparison:
    """One tensor of both traces."""

    name: str
    problem: Problem
    """``missing``: not in actual; ``extra``: not in expected; these two alone do not make traces differ."""
    remark: str = ""
    """Shapes or dtypes, where they are not the same."""
    difference: Difference | None = None
    used: float = 0.0
    """The largest error over what is allowed at that element."""
    beyond: int = 0
    """Elements whose error is more than is allowed."""

    @property
    def differs(self) -> bool:
        """Whether this tensor tells the traces apart."""
        return self.problem in ("shape", "non-finite", "values")


@dataclass(frozen=True, kw_only=True)
class TraceComparison:
    """The answer of ``compare_traces``; ``return_code`` is 0 for same, 1 for differs, 2 for cannot tell."""

    actual: Path
    expected: Path
    rule: Rule
    atol: float | None
    taps: tuple[TapComparison, ...]
    stage_count: int
    """The stages that both could have recorded, in every pass."""
    reports: tuple[Report, Report] | None = None
    """Actual and expected against the checkpoint, where one was given."""
    histograms: tuple[UlpHistogram, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def compared(self) -> int:
        """The stages that both traces hold."""
        return sum(tap.problem not in ("missing", "extra") for tap in self.taps)

    @property
    def first_divergence(self) -> str | None:
        """The first tensor, in order of computation, that differs by more than is allowed."""
        return next((tap.name for tap in self.taps if tap.differs), None)

    @property
    def verdict(self) -> Verdict:
        """same, differs, or cannot tell where a control failed."""
        if self.reports is not None and any(report.verdict == "cannot tell" for report in self.reports):
            return "cannot tell"
        return "same" if self.first_divergence is None else "differs"

    @property
    def return_code(self) -> int:
        """The command line's exit code."""
        return RETURN_CODES[self.verdict]

    def headline(self) -> str:
        """The outcome in one sentence."""
        if self.verdict == "cannot tell":
            return "cannot tell: " + "; ".join(r.headline() for r in self.reports or () if r.verdict == "cannot tell")
        first = next((tap for tap in self.taps if tap.differs), None)
        if first is None:
            return f"same: no difference {_beyond(self)} in {self._held()}; {self._largest()}"
        partly = "" if self.compared == self.stage_count else f"; compared: {self._held()}"
        if first.difference is None:
            return f"differs: {_described(first.name)} has another shape ({first.remark}){partly}"
        if first.problem == "non-finite":
            return (
                f"differs: {_described(first.name)} is the first with values that are not finite on both sides{partly}"
            )
        error = first.difference
        return (
            f"differs: {_described(first.name)} is the first {_beyond(self)} "
            f"({_share_beyond(first)}max_abs {error.max_abs:.3g} at {list(error.worst)}: {error.actual_at_worst:.6g}, "
            f"expected {error.expected_at_worst:.6g}){partly}"
        )

    def _held(self) -> str:
        """How many of the stages both traces hold, in words."""
        if self.compared == self.stage_count:
            return f"all {counted(self.compared, 'stage')}"
        return f"the {counted(self.compared, 'stage')} that both hold, of {self.stage_count:,}"

    def _largest(self) -> str:
        measured = [tap for tap in self.taps if tap.difference is not None]
        most = max(measured, key=lambda tap: tap.difference.max_abs if tap.difference else 0.0)
        return f"the largest is {most.difference.max_abs if most.difference else 0.0:.3g}, at {most.name}"

    def __str__(self) -> str:
        lines = [self.headline()]
        lines += [f"  {tap.name}: {tap.problem} {tap.remark}".rstrip() for tap in self.taps if tap.problem]
        return "\n".join(lines)


def _described(name: str) -> str:
    step, tap = split_step(name)
    known = described(tap) if tap not in INPUT_NAMES else tap
    return known if step is None else f"{known} in decode step {step}"


def _share_beyond(tap: TapComparison) -> str:
    count = tap.difference.numel if tap.difference else 0
    return f"{tap.beyond:,} of {count:,} elements, " if tap.beyond else ""


def _beyond(comparison: TraceComparison) -> str:
    if comparison.rule == "atol":
        return f"beyond the stated tolerance of {comparison.atol:g}"
    return "beyond the budget of rounding" + (" (estimated)" if comparison.rule == "estimate" else "")
