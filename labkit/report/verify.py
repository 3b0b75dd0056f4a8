"""Report of a verification -> a terminal table, and JSON."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from labkit.report.coverage import coverage_json, coverage_line
from labkit.verification.agreement import Agreement
from labkit.verification.finding import Finding
from labkit.verification.report import Report
from labkit.verification.tokens import TokenResult
from labkit.verification.verdict import StageResult
from labkit.words import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

MANY = 1e4
LEGEND = (
    "max_abs, max_rel, ulp: largest error against the truth (absolute, relative, in units of the last place)",
    "budget: what rounding explains at the element that takes most of it, so max_abs over budget need not be used",
    "used: the error's share of what rounding explains, inherited included; here: of this operation's own budget, "
    "which is smaller, so that here may exceed used",
)
"""What the columns of the stage table mean."""

COLOURS = {"same": "green", "differs": "red", "cannot tell": "yellow"}


def render_verification(report: Report, *, stage_count: int | None = None) -> "RenderableType":
    """The whole report for a terminal: what ran, the ladder of stages, logits, tokens, controls, verdict.

    ``stage_count``: how many stages the model has, where a trace may have recorded fewer.
    """
    from rich.console import Group
    from rich.text import Text

    from labkit.report.plain import plain

    lines: list[RenderableType] = [_title(report), stage_table(report.stages)]
    lines += [Text(line) for line in LEGEND]
    if report.agreement is not None:
        lines.append(Text(f"logits   {agreement_line(report.agreement)}"))
    lines += [Text(f"tokens   prompt {number}: {token_line(result)}") for number, result in enumerate(report.tokens, 1)]
    lines.append(plain(f"controls {control_line(report)}"))
    if report.coverage is not None:
        lines.append(plain(f"coverage {coverage_line(report.coverage)}"))
    lines += [plain(f"note     {note}") for note in report.notes]
    lines += [_finding(finding) for finding in report.findings]
    lines.append(plain(headline(report, stage_count=stage_count), f"bold {COLOURS[report.verdict]}"))
    return Group(*lines)


def headline(report: Report, *, stage_count: int | None = None) -> str:
    """The verdict in one sentence, which says so where only some of ``stage_count`` stages were recorded."""
    recorded = len(report.stages)
    if report.verdict != "same" or stage_count is None or recorded == stage_count:
        return report.headline()
    most = max(report.stages, key=lambda stage: stage.used)
    shown = f"the {counted(recorded, 'stage')} recorded, of {stage_count}, {'is' if recorded == 1 else 'are'}"
    return f"same: {shown} within rounding (most of its budget used: {most.name}, {most.used:.2f})"


def _title(report: Report) -> "RenderableType":
    from labkit.report.plain import plain, plain_lines

    planted = f", with {', '.join(report.planted)} planted" if report.planted else ""
    title = plain(f"{report.engine}{planted} against transformers on {report.checkpoint}, {report.dtype}", "bold")
    rows = [
        f"prompt {number}: {prompt.describe()} ({counted(len(prompt.ids), 'token')})\n"
        for number, prompt in enumerate(report.prompts, 1)
    ]
    return title.append("\n").append_text(plain_lines("".join(rows), "not bold"))


def stage_table(stages: tuple[StageResult, ...]) -> "RenderableType":
    """The ladder: one row a stage, in order of computation."""
    from rich.table import Table

    from labkit.report.plain import plain

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("stage", overflow="fold")
    for name in ("max_abs", "max_rel", "ulp", "budget", "used", "here"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for stage in stages:
        table.add_row(
            plain(stage.name),
            f"{stage.difference.max_abs:.1e}",
            f"{stage.difference.max_rel:.1e}",
            ulp_text(stage.difference.ulp),
            f"{stage.budget:.1e}",
            short(stage.used),
            short(stage.local_used),
            stage.verdict + (f", {stage.cause}" if stage.cause else ""),
            style=None if stage.verdict == "same" else "red" if stage.cause != "inherited" else "yellow",
        )
    return table


def short(value: float) -> str:
    """A ratio in at most five characters.

    >>> short(0.0312), short(7.2), short(4321.0), short(1234567.0)
    ('0.03', '7.2', '4321', '1e+06')
    """
    if value < 1:
        return f"{value:.2f}"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}" if value < MANY else f"{value:.0e}"


def ulp_text(ulp: float) -> str:
    """An error in ULPs; where it is no longer a matter of rounding, its size says nothing.

    >>> ulp_text(0.5), ulp_text(86.8), ulp_text(2.7e8)
    ('0.50', '86.8', '>1e4')
    """
    return ">1e4" if ulp > MANY else short(ulp)


def agreement_line(agreement: Agreement) -> str:
    """How alike the logits are, in a sentence without its subject."""
    return (
        f"agree with the float64 truth: Pearson r {agreement.pearson:.9f}, "
        f"top-1 {agreement.top_1:.1%}, top-5 {agreement.top_5:.1%}, KL at most {agreement.kl_max:.1e} nats"
    )


def _finding(finding: Finding) -> "RenderableType":
    from rich.text import Text

    from labkit.report.plain import plain

    text = Text("finding  ", style="bold")
    text.append_text(plain(f"{finding.where}: ", "bold red"))
    text.append_text(plain(finding.text, "not bold")).append("\n")
    replayed = "" if finding.error_replayed is None else f"; with the mistake replayed {finding.error_replayed:.2e}"
    if math.isfinite(finding.error_right):  # no shape and no NaN is off by a number
        text.append(
            f"         error against the right operation {finding.error_right:.2e}{replayed}\n", style="not bold"
        )
    text.append(f"         {finding.next_step}", style="not bold")
    return text


def unmeasured(stage: StageResult) -> str | None:
    """What to say of a stage that no difference can be measured of; None of any other."""
    if stage.cause == "shape":
        return f"its shape is {list(stage.shape)}"
    if stage.cause == "non-finite":
        return f"{counted(stage.difference.non_finite, 'element')} NaN or infinite, the first at {list(stage.worst)}"
    return None


def pair_at_worst(stage: StageResult) -> str:
    """The two values at the place of the largest difference."""
    return f"{stage.difference.actual_at_worst:.9g} instead of {stage.difference.expected_at_worst:.9g}"


def token_line(result: TokenResult) -> str:
    """How far two greedy texts go together."""
    count = len(result.expected)
    if result.verdict == "same":
        return f"{count} of {counted(count, 'greedy token')} equal ({len(set(result.actual))} distinct)"
    if result.verdict == "not run":
        return f"greedy tokens were not run: {result.reason}"
    return (
        f"greedy tokens part at {result.parted_at} of {count}: {result.verdict} "
        f"(margin {result.margin:.2e}, rounding explains {result.explained:.2e})"
    )


def control_line(report: Report) -> str:
    """What the controls showed."""
    controls = report.controls
    if controls.failures:
        return "; ".join(controls.failures)
    return (
        f"a clean run in another summation order passes (at most {controls.clean_used:.2f} of its budget); "
        f"{counted(controls.planted, 'small planted fault')}, one a stage, {'seen' if controls.planted == 1 else 'all seen'}"
    )


def verification_json(report: Report, *, stage_count: int | None = None) -> dict[str, Any]:
    """The report as plain JSON values: ``verdict``, ``first_divergence``, ``stages`` and the rest."""
    return {
        "verdict": report.verdict,
        "first_divergence": report.first_divergence,
        "origins": list(report.origins),
        "headline": headline(report, stage_count=stage_count),
        "checkpoint": report.checkpoint,
        "engine": report.engine,
        "dtype": report.dtype,
        "planted": list(report.planted),
        "prompts": [dataclasses.asdict(prompt) for prompt in report.prompts],
        "stages": [stage_json(stage) for stage in report.stages],
        "logits": None if report.agreement is None else dataclasses.asdict(report.agreement),
        "tokens": [dataclasses.asdict(result) for result in report.tokens],
        "controls": {**dataclasses.asdict(report.controls), "failures": list(report.controls.failures)},
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
        "coverage": None if report.coverage is None else coverage_json(report.coverage),
        "notes": list(report.notes),
        "next_tap": report.next_tap,
    }


def stage_json(stage: StageResult) -> dict[str, Any]:
    """One stage as plain JSON values."""
    difference = stage.difference
    return {
        "name": stage.name,
        "shape": list(stage.shape),
        "max_abs": difference.max_abs,
        "max_rel": difference.max_rel,
        "ulp": difference.ulp,
        "at": list(difference.worst),
        "actual": difference.actual_at_worst,
        "expected": difference.expected_at_worst,
        "budget": stage.budget,
        "used": stage.used,
        "used_at": list(stage.worst),
        "local_error": stage.local_error,
        "local_used": stage.local_used,
        "local_used_at": list(stage.local_worst),
        "non_finite": difference.non_finite,
        "verdict": stage.verdict,
        "cause": stage.cause,
    }
