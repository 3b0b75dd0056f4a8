"""Measured rates -> the roofline: operations a second over operations per byte, with memory's slope and the peak."""

from typing import TYPE_CHECKING

from labkit.figures.style import BLUE, GREEN, INK, ORANGE, PURPLE, QUIET, dress, new_figure
from labkit.generation.roofline import Rate, Roofline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKS = {
    "float32": ("o", BLUE, -3),
    "bfloat16": ("s", ORANGE, 4),
    "float16": ("^", GREEN, -11),
    "float64": ("D", PURPLE, 11),
}
"""Shape, colour, and how far up (in points) a point's label stands, so that neighbours' labels keep apart."""


def draw_roofline(bench: Roofline) -> "Figure":
    """Every rate that memory limits as a point under the roof; transformers' as the same mark, hollow.

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
    axes.plot([left, ridge, right], roof, color=INK, linewidth=1.5)
    axes.annotate(
        f"memory, {bench.bandwidth / 1e9:.1f} GB/s", (left, roof[0]), (40, 6), textcoords="offset points", fontsize=8
    )
    axes.annotate(
        f"float32 products, {roof[1]:.0f} GFLOP/s", (ridge, roof[1]), (6, 4), textcoords="offset points", fontsize=8
    )
    for rate, x, y in points:
        marker, colour, lift = MARKS[rate.dtype]
        axes.scatter(x, y, marker=marker, color=colour, s=42, zorder=3, label=rate.dtype)
        label = f"{rate.name}: {rate.tokens_per_second:.3g} tokens/s"
        axes.annotate(label, (x, y), (8, lift), textcoords="offset points", fontsize=7, color=INK)
        for other in rate.beside:
            if other.name == "transformers":
                theirs = y * other.tokens_per_second / rate.tokens_per_second
                axes.scatter(x, theirs, marker=marker, facecolors="none", edgecolors=colour, s=42, zorder=3)
    if any((rate.share or 0) > 1 for rate, _, _ in points):
        told = "above the roof: several tokens a pass"
        axes.text(0.01, 0.98, told, transform=axes.transAxes, va="top", fontsize=8, color=QUIET)
    handles, labels = axes.get_legend_handles_labels()
    seen = dict(zip(labels, handles, strict=True))
    seen["transformers (hollow)"] = axes.scatter([], [], marker="o", facecolors="none", edgecolors=QUIET, s=42)
    axes.legend(seen.values(), seen.keys(), fontsize=8, frameon=False, loc="lower right")
    return figure


def _place(rate: Rate) -> tuple[float, float]:
    """Operations per byte, and thousand million operations a second."""
    assert rate.bytes_per_token
    return rate.operations_per_token / rate.bytes_per_token, rate.operations_per_token * rate.tokens_per_second / 1e9


def _title(bench: Roofline) -> str:
    shares = [(rate.name, rate.share) for rate in bench.rates if rate.share is not None]
    if not shares:
        return f"{bench.folder}: nothing here is limited by memory"
    return f"{bench.folder}: {shares[0][0]} reaches {shares[0][1]:.2f} of what memory allows"
