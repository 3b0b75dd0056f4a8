"""Errors of rounding -> figures: one sum in many orders, and errors in ULPs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from labkit.figures.style import BLUE, INK, VERMILLION, dress, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_sum_errors(errors: Sequence[float], *, probable: float, title: str) -> "Figure":
    """A histogram of the errors of one sum, with the probable bound to both sides.

    >>> draw_sum_errors([1e-6, -2e-6], probable=1e-5, title="two orders").get_suptitle()
    'two orders'
    """
    figure = new_figure(title, height=2.8)
    axes = dress(figure.subplots(), x="error of the sum", y="orders")
    axes.hist(errors, bins=41, color=BLUE)
    for side in (-1, 1):
        axes.axvline(side * probable, color=VERMILLION, linestyle="--", linewidth=1.2)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.text(probable, axes.get_ylim()[1] * 0.9, " probable bound", color=INK, fontsize=8)
    return figure


def draw_growth(errors: dict[str, dict[str, float]], *, title: str) -> "Figure":
    """Error by depth, one line a dtype: dtype -> stage -> relative error, on a logarithmic axis.

    >>> draw_growth({"float32": {"embed": 1e-8, "h.0.resid_post": 1e-7}}, title="growth").get_suptitle()
    'growth'
    """
    marks = ("o", "s", "^", "D")
    figure = new_figure(title, height=3.2)
    axes = dress(figure.subplots(), y="relative error (L2)")
    axes.set_yscale("log")
    for (name, stages), marker in zip(errors.items(), marks, strict=False):
        axes.plot(list(stages), list(stages.values()), marker=marker, markersize=5, linewidth=1.2, label=name)
    axes.tick_params(axis="x", labelrotation=30)
    axes.legend(fontsize=8, frameon=False)
    return figure
