"""Attention patterns and the logit lens -> figures."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from labkit.figures.style import INK, PAPER, SEQUENTIAL, dress, new_figure
from labkit.words import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

COLUMNS = 6


def draw_attention(pattern: "Tensor", labels: Sequence[str], *, title: str) -> "Figure":
    """Every head of a pattern [head, pos_q, pos_k] as a small square: query down, key across, dark is much.

    >>> import torch
    >>> draw_attention(torch.eye(3)[None], ["a", "b", "c"], title="one head").get_suptitle()
    'one head'
    """
    heads = pattern.shape[0]
    rows, columns = -(-heads // COLUMNS), min(heads, COLUMNS)
    figure = new_figure(title, width=1.0 + 1.45 * columns, height=0.8 + 1.6 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)  # [row, column]
    image = None
    for head, axes in enumerate(grid.flat):
        axes.set_axis_off()
        if head >= heads:
            continue
        image = axes.imshow(pattern[head].float().cpu().numpy(), cmap=f"{SEQUENTIAL}_r", vmin=0, vmax=1)
        axes.set_title(f"head {head}", fontsize=8, color=INK)
    if image is not None:
        bar = figure.colorbar(image, ax=grid, shrink=0.8)
        bar.set_label("share of attention", fontsize=8, color=INK)
        bar.ax.tick_params(labelsize=7, colors=INK)
    figure.supxlabel(f"{counted(len(labels), 'token')}: queries down, keys across", fontsize=8, color=INK)
    return figure


def draw_lens(
    words: Mapping[str, Sequence[str]], shares: Mapping[str, Sequence[float]], labels: Sequence[str], *, title: str
) -> "Figure":
    """The likeliest token after each stage (up) at each position (across), shaded by its probability.

    >>> draw_lens({"embed": ["a"]}, {"embed": [0.5]}, ["x"], title="lens").get_suptitle()
    'lens'
    """
    names = list(words)
    width = max(4.0, 1.2 + 0.62 * len(labels))
    figure = new_figure(title, width=width, height=1.1 + 0.34 * len(names))
    axes = dress(figure.subplots(), x="after the token")
    table = [list(shares[name]) for name in names]
    axes.imshow(table, cmap=f"{SEQUENTIAL}_r", vmin=0, vmax=1, aspect="auto")
    for row, name in enumerate(names):
        for column, word in enumerate(words[name]):
            dark = table[row][column] > 0.55
            shown = word.replace("$", "\\$").replace("\n", "⏎")
            axes.text(column, row, shown, ha="center", va="center", fontsize=8, color=PAPER if dark else INK)
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks(range(len(labels)), [label.replace("$", "\\$").replace("\n", "⏎") for label in labels])
    axes.grid(visible=False)
    return figure
