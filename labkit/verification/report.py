"""The record of one verification: what was compared, what was found, and how far the answer can be trusted."""

import math
from dataclasses import dataclass
from typing import Literal

from labkit.verification.agreement import Agreement
from labkit.verification.controls import Controls
from labkit.verification.detective import Coverage
from labkit.verification.finding import Finding
from labkit.verification.precision import Precision
from labkit.verification.prompts import Prompt
from labkit.verification.tokens import TokenResult
from labkit.verification.verdict import StageResult
from labkit.words import every

Verdict = Literal["same", "differs", "cannot tell"]
OWN_CAUSES = ("local", "non-finite", "shape", "pattern")
"""Causes that lie in a stage itself."""

RETURN_CODES: dict[Verdict, int] = {"same": 0, "differs": 1, "cannot tell": 2}


@dataclass(frozen=True, kw_only=True)
class Report:
    """The answer of ``labkit.verify``.

    ``str()`` gives it in a few lines; ``return_code`` is 0 for same, 1 for differs, 2 for cannot tell.
    """

    checkpoint: str
    engine: str
    dtype: str
    precision: Precision
    """What the engine says of its arithmetic; ``dtype`` is the same in words."""
    planted: tuple[str, ...]
    """Faults planted on purpose, as ``NAME`` or ``NAME:BLOCK``."""
    prompts: tuple[Prompt, ...]
    stages: tuple[StageResult, ...]
    agreement: Agreement | None
    """None where no logits were recorded."""
    tokens: tuple[TokenResult, ...]
    controls: Controls
    findings: tuple[Finding, ...] = ()
    """What is wrong and why, one a fault, in order of computation."""
    coverage: Coverage | None = None
    """Which mistakes these prompts and taps could have shown."""
    device: str = "cpu"
    trace_sha256: str | None = None
    """Of the trace file that was judged; None where an engine was run."""
    notes: tuple[str, ...] = ()
    next_tap: str | None = None
    """For a trace of some taps only: the one to record next, which halves the search for the first fault."""

    @property
    def first_divergence(self) -> str | None:
        """The first stage, in order of computation, that rounding does not explain."""
        return next((stage.name for stage in self.stages if stage.verdict == "differs"), None)

    @property
    def origins(self) -> tuple[str, ...]:
        """Every stage whose own operation is wrong; the others that differ were fed wrong inputs."""
        found = {finding.where for finding in self.findings}
        return tuple(stage.name for stage in self.stages if stage.cause in OWN_CAUSES or stage.name in found)

    @property
    def verdict(self) -> Verdict:
        """same, differs, or cannot tell where a control failed or greedy tokens could not be run."""
        if self.controls.failures:
            return "cannot tell"
        if self.first_divergence is not None or any(result.verdict == "differs" for result in self.tokens):
            return "differs"
        return "cannot tell" if self.unrun else "same"

    @property
    def unrun(self) -> str | None:
        """Why the greedy tokens of a prompt could not be run; None where they were."""
        return next((result.reason for result in self.tokens if result.verdict == "not run"), None)

    @property
    def return_code(self) -> int:
        """The command line's exit code."""
        return RETURN_CODES[self.verdict]

    def headline(self) -> str:
        """The verdict in one sentence."""
        if self.verdict == "cannot tell":
            unrun = () if self.unrun is None else (f"greedy tokens were not run: {self.unrun}",)
            return "cannot tell: " + "; ".join(self.controls.failures or unrun)
        if self.first_divergence is not None:
            stage = next(each for each in self.stages if each.name == self.first_divergence)
            told = {name for each in self.findings if each.where == stage.name for name in each.span}
            more = [name for name in self.origins if name not in {stage.name, *told}]
            also = f"; also wrong by themselves: {', '.join(more)}" if more else ""
            if stage.cause == "pattern":
                return (
                    f"differs: {stage.name} is within its budget, but the pattern of its errors is not rounding's{also}"
                )
            return f"differs: {stage.name} is the first stage beyond rounding ({_how_far(stage)}){also}"
        if self.verdict == "differs":
            return "differs: every stage is within rounding, but the greedy tokens part by more than rounding explains"
        most = max(self.stages, key=lambda stage: stage.used)
        return f"same: {every(len(self.stages), 'stage')} within rounding (most of its budget used: {most.name}, {most.used:.2f})"

    def __str__(self) -> str:
        lines = [self.headline()]
        lines += [f"  {finding}" for finding in self.findings]
        lines += [f"  {s.name}: max_abs {s.difference.max_abs:.3g}, {s.verdict}" for s in self.stages if s.cause]
        return "\n".join(lines)


def _how_far(stage: StageResult) -> str:
    """How far a stage is off, in words that mean something where its budget is zero or nothing can be measured."""
    if stage.cause == "shape":
        return f"its shape, {list(stage.shape)}, is another"
    if stage.cause == "non-finite":
        return f"it holds NaN or infinity, first at {list(stage.worst)}"
    if math.isinf(stage.used):
        return f"off by {stage.difference.max_abs:.3g} at {list(stage.worst)}, where rounding explains nothing"
    return f"{stage.used:.3g} times its budget, the operation itself {stage.local_used:.3g} times"
