"""One style for all figures: a light card with dark ink, legible on a light page and on a dark one.

Figures are made without pyplot, so that drawing is safe on any thread and leaves nothing behind. A shape goes with
every colour, and the colours (Okabe and Ito 2008) keep apart for colour-blind readers.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Figure

INK = "#1a1a1a"
QUIET = "#595959"
PAPER = "#fcfcfa"
RULE = "#c9c9c4"
BLUE = "#0072b2"
SKY = "#56b4e9"
GREEN = "#009e73"
ORANGE = "#e69f00"
VERMILLION = "#d55e00"
PURPLE = "#cc79a7"
SEQUENTIAL = "cividis"
DIVERGING = "PuOr"
DPI = 100
"""Dots per inch on the page; files are written with twice as many."""


def new_figure(title: str, *, width: float = 8.0, height: float = 3.6) -> "Figure":
    """An empty figure in the common style, in inches; the title says what is shown.

    >>> new_figure("nothing yet").get_suptitle()
    'nothing yet'
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, facecolor=PAPER, layout="constrained")
    figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left", fontweight="bold")
    return figure


def dress(axes: "Axes", *, x: str = "", y: str = "") -> "Axes":
    """Labels with units, quiet rules, no box."""
    axes.set_facecolor(PAPER)
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)
    axes.tick_params(labelsize=8, colors=INK, length=3)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(QUIET)
    axes.grid(visible=True, color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)
    return axes


def to_png(figure: "Figure") -> bytes:
    """The figure as a PNG at twice the page's resolution, without a date inside."""
    import io

    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=2 * DPI, metadata={"Software": None})
    return out.getvalue()
