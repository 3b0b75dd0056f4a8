"""Records about trace files -> text for a terminal, and JSON."""

import dataclasses
from typing import TYPE_CHECKING, Any

from labkit.report.verify import COLOURS, ulp_text, verification_json
from labkit.verification.lint_defects import LintReport
from labkit.verification.precision import dtype_name
from labkit.verification.trace_comparison import TapComparison, TraceComparison

if TYPE_CHECKING:
    from rich.console import RenderableType


def render_lint(report: LintReport) -> "RenderableType":
    """The defects, the notes, and the outcome."""
    from rich.console import Group

    from labkit.report.plain import plain

    lines = [plain(defect, "red") for defect in report.defects]
    lines += [plain(f"note     {note}") for note in report.notes]
    lines.append(plain(report.headline(), "bold red" if report.defects else "bold green"))
    return Group(*lines)


def lint_json(report: LintReport) -> dict[str, Any]:
    """The report as plain JSON values; each of ``defects`` has ``code``, ``tensor``, ``what`` and ``fix``."""
    return {**dataclasses.asdict(report), "return_code": report.return_code, "headline": report.headline()}


def render_comparison(comparison: TraceComparison) -> "RenderableType":
    """The table of tensors, the histograms of ULPs where they were asked for, notes, and the outcome."""
    from rich.console import Group
    from rich.text import Text

    from labkit.report.plain import plain

    lines: list[RenderableType] = [_table(comparison)]
    lines += [Text(f"\nerrors in ULPs by binade of the expected value\n{each}\n") for each in comparison.histograms]
    lines += [plain(f"note     {note}") for note in comparison.notes]
    lines.append(plain(comparison.headline(), f"bold {COLOURS[comparison.verdict]}"))
    return Group(*lines)


def _table(comparison: TraceComparison) -> "RenderableType":
    from rich.table import Table

    from labkit.report.plain import plain

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("tensor", overflow="fold")
    for name in ("max_abs", "max_rel", "ulp", "of allowed"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("outcome")
    for tap in comparison.taps:
        error = tap.difference
        figures = (
            ("", "", "") if error is None else (f"{error.max_abs:.1e}", f"{error.max_rel:.1e}", ulp_text(error.ulp))
        )
        used = "" if error is None else f"{tap.used:.3g}"
        table.add_row(plain(tap.name), *figures, used, plain(_outcome(tap)), style="red" if tap.differs else None)
    return table


def _outcome(tap: TapComparison) -> str:
    words = {
        "": "same",
        "missing": "not in actual",
        "extra": "not in expected",
        "shape": "differs in shape",
        "non-finite": "not finite",
        "values": "differs",
    }[tap.problem]
    equal = " (bit for bit)" if tap.difference is not None and tap.difference.equal and not tap.problem else ""
    return f"{words}{equal}" + (f", {tap.remark}" if tap.remark else "")


def comparison_json(comparison: TraceComparison) -> dict[str, Any]:
    """The comparison as plain JSON values: ``verdict``, ``first_divergence``, ``taps`` and the rest."""
    return {
        "verdict": comparison.verdict,
        "first_divergence": comparison.first_divergence,
        "headline": comparison.headline(),
        "actual": str(comparison.actual),
        "expected": str(comparison.expected),
        "rule": comparison.rule,
        "atol": comparison.atol,
        "compared": comparison.compared,
        "stage_count": comparison.stage_count,
        "not_in_actual": [tap.name for tap in comparison.taps if tap.problem == "missing"],
        "not_in_expected": [tap.name for tap in comparison.taps if tap.problem == "extra"],
        "taps": [dataclasses.asdict(tap) for tap in comparison.taps],
        "ulps": {
            dtype_name(each.dtype): {
                "zero" if binade is None else str(binade): counts for binade, counts in sorted_counts(each.counts)
            }
            for each in comparison.histograms
        },
        "against_checkpoint": None
        if comparison.reports is None
        else dict(zip(("actual", "expected"), map(verification_json, comparison.reports), strict=True)),
        "notes": list(comparison.notes),
    }


def sorted_counts(counts: dict[int | None, list[int]]) -> list[tuple[int | None, list[int]]]:
    """The binades of a histogram, zero first, then from small to large.

    >>> sorted_counts({3: [1], None: [2], -1: [0]})
    [(None, [2]), (-1, [0]), (3, [1])]
    """
    return sorted(counts.items(), key=lambda item: (item[0] is not None, item[0] or 0))
