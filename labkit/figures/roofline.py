"""Measured rates -> the roofline: operations a second over operations per byte, with memory's slope and the peak."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.figures.style import BLUE, GREEN, INK, ORANGE, PURPLE, QUIET, dress, new_figure
from labkit.generation.roofline import Rate, Roofline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = {
    "float32": ("o", BLUE),
    "bfloat16": ("s", ORANGE),
    "float16": ("^", GREEN),
    "float64": ("D", PURPLE),
}
"""Shape and colour of a dtype's points."""


def draw_roofline(bench: Roofline) -> "Figure":
    """Every rate that memory limits as a point under the roof; transformers' as the same mark, hollow.

    The points' labels stand in a column beside the axes, from top to bottom as the points do, so that none hides another.

    >>> fields = {"bytes_per_token": 5e8, "operations_per_token": 2.5e8, "share": 0.9}
    >>> rate = Rate(name="decode", dtype="float32", tokens_per_second=18.0, **fields)
    >>> bench = Roofline(folder="gpt2", device="cpu", threads=2, clock="wall", bandwidth=1e10, peak=1e11, rates=(rate,))
    >>> draw_roofline(bench).get_suptitle()
    'gpt2: decode reaches 0.90 of what memory allows'
    """
    figure = new_figure(_title(bench), width=8.0, height=4.2)
    axes = dress(figure.subplots(), x="operations per byte read", y="operations per second (GFLOP/s)")
    axes.set_xscale("log")
    axes.set_yscale("log")
    points = [(rate, *_place(rate)) for rate in bench.rates if rate.bytes_per_token]
    ridge = bench.peak / bench.bandwidth
    left, right = min([0.1, *(x / 2 for _, x, _ in points)]), max([4 * ridge, *(2 * x for _, x, _ in points)])
    roof = [left * bench.bandwidth / 1e9, bench.peak / 1e9, bench.peak / 1e9]
    told = f"memory, {bench.bandwidth / 1e9:.1f} GB/s, then float32 products, {roof[1]:.0f} GFLOP/s"
    axes.plot([left, ridge, right], roof, color=INK, linewidth=1.5, label=told)
    for rate, x, y in points:
        marker, colour = MARKS[rate.dtype]
        axes.scatter(x, y, marker=marker, color=colour, s=42, zorder=3, label=rate.dtype)
        for other in rate.beside:
            if other.name == "transformers":
                theirs = y * other.tokens_per_second / rate.tokens_per_second
                axes.scatter(x, theirs, marker=marker, facecolors="none", edgecolors=colour, s=42, zorder=3)
    _label(axes, points)
    handles, labels = axes.get_legend_handles_labels()
    seen = dict(zip(labels, handles, strict=True))
    seen["transformers (hollow)"] = axes.scatter([], [], marker="o", facecolors="none", edgecolors=QUIET, s=42)
    if any((rate.share or 0) > 1 for rate, _, _ in points):
        seen["above the roof: several tokens a pass"] = axes.scatter([], [], marker="")
    figure.legend(seen.values(), seen.keys(), fontsize=8, frameon=False, loc="outside lower left", ncols=3)
    return figure


def _label(axes: "Axes", points: Sequence[tuple[Rate, float, float]]) -> None:
    """The points' labels in even rows beside the axes, each led to its point by a line."""
    for number, (rate, x, y) in enumerate(sorted(points, key=lambda point: -point[2])):
        axes.annotate(
            f"{rate.name}, {rate.dtype}: {_figure_of(rate.tokens_per_second)} tokens/s",
            (x, y),
            (1.03, 1 - (number + 0.5) / len(points)),
            textcoords="axes fraction",
            arrowprops={
                "arrowstyle": "-",
                "color": MARKS[rate.dtype][1],
                "linewidth": 0.6,
                "relpos": (0, 0.5),
                "shrinkA": 2,
                "shrinkB": 4,  # from the middle of the label's left side
            },
            fontsize=8,
            color=INK,
            va="center",
            annotation_clip=False,
        )


def _figure_of(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def _place(rate: Rate) -> tuple[float, float]:
    """Operations per byte, and thousand million operations a second."""
    assert rate.bytes_per_token
    return rate.operations_per_token / rate.bytes_per_token, rate.operations_per_token * rate.tokens_per_second / 1e9


def _title(bench: Roofline) -> str:
    name = Path(bench.folder).name or bench.folder
    shares = [(rate.name, rate.share) for rate in bench.rates if rate.share is not None]
    if not shares:
        return f"{name}: nothing here is limited by memory"
    return f"{name}: {shares[0][0]} reaches {shares[0][1]:.2f} of what memory allows"
