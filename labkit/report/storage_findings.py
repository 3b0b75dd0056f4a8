"""Findings of the storage room -> rich renderables and plain values: statistics, checks, differences, the selftest."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from labkit.report.plain import columns, plain
from labkit.storage.checking import Check
from labkit.storage.loaders import SEES, behaviours_of
from labkit.storage.selftest import SelftestResult

if TYPE_CHECKING:  # these records come with torch
    from labkit.storage.comparison import SnapshotDiff, TensorDiff
    from labkit.storage.statistics import TensorStatistics

_SHOWN_DEFECTS = 50


def statistics_json(found: "Sequence[TensorStatistics]") -> dict[str, Any]:
    """Every tensor's statistics, as plain values."""
    return {"tensors": [asdict(each) for each in found]}


def render_statistics(found: "Sequence[TensorStatistics]") -> RenderableType:
    """A table of statistics; a row with NaN or infinities stands out."""
    table = columns(("tensor", "dtype", "shape"), ("n", "min", "max", "mean", "std", "zeros", "NaN", "Inf"))
    for each in found:
        numbers = (f"{value:.6g}" for value in (each.minimum, each.maximum, each.mean, each.std))
        counts = (f"{value:,}" if value else "-" for value in (each.zeros, each.nans, each.infinities))
        style = "bold red" if each.nans or each.infinities else ""
        table.add_row(
            plain(each.name), each.dtype, str(list(each.shape)), f"{each.numel:,}", *numbers, *counts, style=style
        )
    return table


def check_json(check: Check) -> dict[str, Any]:
    """Every defect and caution, with what other readers make of the defects, as plain values."""
    return {
        "paths": [str(path) for path in check.paths],
        "verdict": "defects" if check.defects else "sound",
        "defects": [
            {
                "code": defect.code,
                "message": str(defect),
                "others": [asdict(each) for each in behaviours_of(defect.code)],
                "sees": SEES.get(defect.code),
            }
            for defect in check.defects
        ],
        "cautions": [asdict(caution) for caution in check.cautions],
    }


def render_check(check: Check, place: object) -> RenderableType:
    """Every defect with its code, what other readers make of it, and what is allowed and yet worth knowing; then the
    verdict on ``place``, the path that was asked about.
    """
    parts: list[RenderableType] = []
    for defect in check.defects[:_SHOWN_DEFECTS]:
        parts.append(Text.assemble(("refused  ", "bold red"), plain(defect)))
    if len(check.defects) > _SHOWN_DEFECTS:
        parts.append(Text(f"         and {len(check.defects) - _SHOWN_DEFECTS} more"))
    for code in dict.fromkeys(defect.code for defect in check.defects):
        parts.extend(_others(code))
    for caution in check.cautions:
        parts.append(Text.assemble(("caution  ", "yellow"), plain(caution)))
    said = f"{check}" if check.defects else "sound, every rule is kept"
    return Group(*parts, plain(f"{place}: {said}", "bold red" if check.defects else "bold green"))


def _others(code: str) -> Iterable[RenderableType]:
    behaviours = behaviours_of(code)
    if not behaviours:
        return
    yield Text(f"what other readers do with files that break {code} (measured):")
    for behaviour in behaviours:
        style = "yellow" if behaviour.accepted else "dim"
        yield Text(f"  {behaviour}", style)
    if code in SEES and any(behaviour.accepted for behaviour in behaviours):
        yield Text(f"  where accepted: {SEES[code]}")


def diff_json(diff: "SnapshotDiff") -> dict[str, Any]:
    """Every tensor's verdict, as plain values."""
    return {
        "verdict": "same" if diff.return_code == 0 else "differs",
        "notes": list(diff.notes),
        "tensors": [asdict(tensor) for tensor in diff.tensors],
    }


def render_diff(diff: "SnapshotDiff", *, show_same: bool = False) -> RenderableType:
    """The tensors that differ (all of them with ``show_same``), and the verdict."""
    table = columns(("tensor", "verdict", "A", "B"), ("differing", "max_abs", "ulp", "worst at"))
    listed = [tensor for tensor in diff.tensors if show_same or tensor.verdict != "same"]
    for tensor in listed:
        table.add_row(*_diff_row(tensor), style="" if tensor.verdict == "same" else "bold")
    notes = [plain(f"note: {note}") for note in diff.notes]
    verdict = plain(diff, "bold green" if diff.return_code == 0 else "bold red")
    return Group(*([table] if listed else []), *notes, verdict)


def _diff_row(tensor: "TensorDiff") -> list[Text]:
    numbers = [
        "" if tensor.differing is None else f"{tensor.differing:,}",
        "" if tensor.max_abs is None else f"{tensor.max_abs:.6g}",
        "" if tensor.ulp is None else f"{tensor.ulp:,}",
        "" if tensor.worst is None else f"element {tensor.worst:,}",
    ]
    return [plain(text) for text in (tensor.name, tensor.verdict, tensor.a, tensor.b, *numbers)]


def render_selftest(results: Sequence[SelftestResult]) -> RenderableType:
    """Each crafted file with its verdict, and how many there were."""
    table = columns(("file", "oddity", "verdict"), ())
    for result in results:
        style = "" if result.passed else "bold red"
        verdict = result.code or "accepted"
        if not result.passed:
            verdict += f", expected {result.crafted.code or 'accepted'}"
        table.add_row(plain(result.crafted.name), plain(result.crafted.oddity), verdict, style=style)
    refused = sum(result.code is not None for result in results)
    wrong = sum(not result.passed for result in results)
    text = f"{len(results)} crafted files: {refused} refused, {len(results) - refused} accepted, {wrong} wrongly"
    return Group(table, Text(text, "bold red" if wrong else "bold green"))


def selftest_json(results: Sequence[SelftestResult]) -> dict[str, Any]:
    """Each crafted file with its verdict, as plain values."""
    return {
        "files": [
            {
                "name": result.crafted.name,
                "expected": result.crafted.code,
                "code": result.code,
                "passed": result.passed,
                "message": result.message,
            }
            for result in results
        ]
    }
