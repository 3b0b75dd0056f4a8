"""Report of a verification -> the ladder: every stage, and how much of its budget its error takes."""

from typing import TYPE_CHECKING

from labkit.figures.style import BLUE, INK, ORANGE, VERMILLION, dress, new_figure
from labkit.verification.report import Report
from labkit.verification.verdict import StageResult
from labkit.words import every

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST = 1e-3
"""Shares of a budget below this, zero included, are drawn here."""
MOST = 1e8
MARKS = {
    "": ("o", BLUE, "within rounding"),
    "inherited": (">", ORANGE, "inherited"),
    "local": ("X", VERMILLION, "wrong here"),
}


def draw_ladder(report: Report) -> "Figure":
    """Stages down, error across in units of the budget (logarithmic), one column a block; the line at 1 is the budget.

    >>> from labkit.verification import verify
    >>> draw_ladder(verify(prompts=["It is a truth"], tokens=0)).get_suptitle()
    'All 61 stages within rounding'
    """
    columns = _columns(report.stages)
    rows = max(len(stages) for stages in columns.values())
    figure = new_figure(_title(report), width=min(1.6 + 1.05 * len(columns), 14), height=1.0 + 0.19 * rows)
    grid = figure.subplots(1, len(columns), sharex=True, squeeze=False)[0]  # [column]
    inner = next((name for name in columns if name.startswith("block")), None)
    for place, (axes, (name, stages)) in enumerate(zip(grid, columns.items(), strict=True)):
        _draw_column(axes, name, stages, rows, labels=not name.startswith("block") or name == inner)
        if place == len(columns) // 2:
            axes.set_xlabel("error / budget", fontsize=9, color=INK)
    seen = {_kind(stage) for stage in report.stages}
    handles = [
        grid[0].scatter([], [], marker=marker, color=colour, s=28, label=label)
        for kind, (marker, colour, label) in MARKS.items()
        if kind in seen
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=3, fontsize=8, frameon=False)
    return figure


def _columns(stages: tuple[StageResult, ...]) -> dict[str, list[StageResult]]:
    """The stages by block; those before and after the blocks in columns of their own."""
    columns: dict[str, list[StageResult]] = {}
    for stage in stages:
        inside = stage.name.startswith("h.")
        outside = "after" if any(name.startswith("block") for name in columns) else "before"
        columns.setdefault(f"block {stage.name.split('.')[1]}" if inside else outside, []).append(stage)
    return columns


def _draw_column(axes: "Axes", name: str, stages: list[StageResult], rows: int, *, labels: bool) -> None:
    dress(axes)
    axes.set_xscale("log")
    axes.set_xlim(LEAST / 2, MOST * 2)
    axes.set_xticks([1e-3, 1, 1e3, 1e6], ["", "1", "", "$10^6$"])
    axes.minorticks_off()
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_title(name, fontsize=8, color=INK)
    axes.set_ylim(rows - 0.5, -0.5)
    short = [stage.name.split(".", 2)[2] if stage.name.startswith("h.") else stage.name for stage in stages]
    axes.set_yticks(range(len(stages)), short if labels else [""] * len(stages))
    for row, stage in enumerate(stages):
        marker, colour, _label = MARKS[_kind(stage)]
        axes.scatter(min(max(stage.used, LEAST), MOST), row, marker=marker, color=colour, s=28, clip_on=False, zorder=3)


def _kind(stage: StageResult) -> str:
    return "local" if stage.cause in ("local", "non-finite") else stage.cause


def _title(report: Report) -> str:
    first = report.first_divergence
    return (
        f"First stage beyond rounding: {first}"
        if first
        else f"{every(len(report.stages), 'stage').capitalize()} within rounding"
    )
