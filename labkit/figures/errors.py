"""Errors of stages -> figures: a map, a histogram in ULPs, a waterfall, and the kill matrix of the planted faults."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from labkit.compare.difference import spacing
from labkit.figures.style import BLUE, INK, ORANGE, SEQUENTIAL, SKY, VERMILLION, dress, new_figure
from labkit.verification.kill_matrix import KillMatrix
from labkit.verification.verdict import StageResult
from labkit.words import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

LEAST = 1e-12
"""Errors below this, zero included, are drawn here on logarithmic axes."""
OUTCOMES = {"killed": ("X", VERMILLION), "equivalent": ("=", SKY), "below floor": ("~", ORANGE), "survived": ("?", INK)}


def draw_error_map(actual: "Tensor", expected: "Tensor", *, title: str) -> "Figure":
    """The absolute error of one plane [rows, columns], on a logarithmic scale.

    >>> import torch
    >>> draw_error_map(torch.zeros(2, 3), torch.full((2, 3), 1e-3), title="two rows").get_suptitle()
    'two rows'
    """
    from matplotlib.colors import LogNorm

    error = (actual.cpu().double() - expected.cpu().double()).abs().clamp(min=LEAST)  # [rows, columns]
    figure = new_figure(title, height=3.0)
    axes = dress(figure.subplots(), x="column", y="row")
    largest = float(error.max())
    scale = LogNorm(vmin=max(largest / 1e4, LEAST), vmax=max(largest, 10 * LEAST))
    image = axes.imshow(error.numpy(), cmap=f"{SEQUENTIAL}_r", norm=scale, aspect="auto", interpolation="nearest")
    axes.grid(visible=False)
    bar = figure.colorbar(image, ax=axes)
    bar.set_label("absolute error", fontsize=8, color=INK)
    return figure


def draw_ulp_histogram(actual: "Tensor", expected: "Tensor", *, title: str) -> "Figure":
    """How many elements are off by how many ULPs of ``actual``'s dtype, with the sign of the error.

    >>> import torch
    >>> draw_ulp_histogram(torch.ones(4), torch.ones(4), title="equal").get_suptitle()
    'equal'
    """
    exact = expected.cpu().double()  # [...]
    ulps = ((actual.cpu().double() - exact) / spacing(exact.abs(), actual.dtype)).flatten()  # [numel]
    edge = max(2.0, float(ulps.abs().quantile(0.999)) if ulps.numel() < 1 << 24 else float(ulps.abs().max()))
    figure = new_figure(title, height=2.8)
    axes = dress(figure.subplots(), x="error in ULPs; the outermost bars hold what lies beyond", y="elements")
    axes.hist(ulps.clamp(-edge, edge).numpy(), bins=61, color=BLUE)
    axes.set_yscale("log")
    return figure


def draw_waterfall(stages: Sequence[StageResult]) -> "Figure":
    """Largest error of every stage in order of computation (bars) and the budget where it is worst (marks).

    >>> from labkit.verification import verify
    >>> draw_waterfall(verify(prompts=["It is a truth"], tokens=0).stages).get_suptitle()
    '61 stages: largest error of each, and what rounding explains'
    """
    figure = new_figure(
        f"{counted(len(stages), 'stage')}: largest error of each, and what rounding explains", width=9.0
    )
    axes = dress(figure.subplots(), x="stage, in order of computation", y="absolute error")
    places = list(range(len(stages)))
    colours = [
        BLUE if stage.verdict == "same" else ORANGE if stage.cause == "inherited" else VERMILLION for stage in stages
    ]
    heights = [max(stage.difference.max_abs, LEAST) for stage in stages]
    axes.bar(places, heights, color=colours, width=0.8)
    axes.scatter(places, [max(stage.budget, LEAST) for stage in stages], marker="_", color=INK, s=30, zorder=3)
    axes.set_yscale("log")
    ends = [place for place in places if stages[place].name.endswith("resid_post") or place in (0, len(stages) - 1)]
    axes.set_xticks(ends, [stages[place].name for place in ends], rotation=30, ha="right")
    return figure


def draw_kill_matrix(matrix: KillMatrix) -> "Figure":
    """Faults down, blocks across: X killed, = proved to change nothing, ~ below the floor, ? survived."""
    names = list(dict.fromkeys(cell.name for cell in matrix.cells))
    blocks = sorted({cell.block for cell in matrix.cells})
    killed = sum(cell.killed for cell in matrix.cells)
    title = f"{killed} of {len(matrix.cells)} planted faults killed, {len(matrix.survivors)} survived"
    figure = new_figure(title, width=3.4 + 0.6 * len(blocks), height=1.2 + 0.17 * len(names))
    axes = dress(figure.subplots(), x="block")
    for cell in matrix.cells:
        mark, colour = OUTCOMES[cell.outcome]
        place = (blocks.index(cell.block), names.index(cell.name))
        axes.text(*place, mark, ha="center", va="center", fontsize=7, color=colour, fontweight="bold")
    axes.set_xlim(-0.6, len(blocks) - 0.4)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xticks(range(len(blocks)), [str(block) for block in blocks])
    axes.set_yticks(range(len(names)), names, fontsize=6)
    return figure
