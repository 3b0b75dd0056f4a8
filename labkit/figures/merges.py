"""Encodings -> figures: the tree of merges of a piece, and the strip of tokens over its bytes and characters."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from labkit.errors import ArgumentError
from labkit.figures.style import BLUE, GREEN, INK, ORANGE, PAPER, PURPLE, QUIET, RULE, SKY, new_figure
from labkit.tokenizer import Encoding, MergeNode, Token, to_symbols

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAXIMUM_TREE = 64
"""Bytes in a drawn tree: more cannot be read."""
ROW = 40
"""Bytes in a row of the strip."""
MAXIMUM_STRIP = 600
"""Bytes in a drawn strip."""
FILLS = (SKY, ORANGE, GREEN, PURPLE)
"""Neighbours never share one, so that a token's edges show without reading."""


def draw_merge_tree(nodes: Sequence[MergeNode]) -> "Figure":
    """The merges of one piece: bytes at the foot, each merge above its two parts with its rank, tokens at the top.

    >>> from labkit.tokenizer import Tokenizer
    >>> (token,) = Tokenizer.gpt2().explain(" world").tokens
    >>> draw_merge_tree([token.tree]).get_suptitle()
    '6 bytes, 5 merges, 1 token'

    Raises ArgumentError for a piece that is empty or longer than 64 bytes.
    """
    size = sum(len(node.data) for node in nodes)
    if not 0 < size <= MAXIMUM_TREE:
        raise ArgumentError("the piece cannot be drawn as a tree", expected=f"1 to {MAXIMUM_TREE} bytes", got=size)
    depth = max(map(_height, nodes))
    merges = size - len(nodes)
    title = f"{_many(size, 'byte')}, {_many(merges, 'merge')}, {_many(len(nodes), 'token')}"
    figure = new_figure(title, width=max(3.2, 0.75 * size + 0.6), height=1.6 + 0.62 * depth)
    axes = figure.subplots()
    axes.set_xlim(-0.6, size - 0.4)
    axes.set_ylim(-0.7, depth + 0.6)
    axes.set_axis_off()
    place = 0
    for node in nodes:
        _draw_node(axes, node, place, top=True)
        place += len(node.data)
    return figure


def draw_token_strip(encoding: Encoding) -> "Figure":
    """The tokens of a text in a strip: characters above, tokens with their ids, bytes below; all to one ruler.

    >>> from labkit.tokenizer import Tokenizer
    >>> draw_token_strip(Tokenizer.gpt2().explain("日本 says hello")).get_suptitle()
    '6 tokens over 17 bytes and 13 characters'

    Raises ArgumentError for a text that is empty or longer than 600 bytes.
    """
    size = len(encoding.text.encode("utf-8"))
    if not 0 < size <= MAXIMUM_STRIP:
        raise ArgumentError("the text cannot be drawn as a strip", expected=f"1 to {MAXIMUM_STRIP} bytes", got=size)
    rows = -(-size // ROW)
    counts = f"{_many(len(encoding.tokens), 'token')} over {_many(size, 'byte')}"
    title = f"{counts} and {_many(len(encoding.text), 'character')}"
    figure = new_figure(title, width=max(4.0, 0.27 * min(size, ROW) + 0.8), height=0.6 + 1.15 * rows)
    axes = figure.subplots()
    axes.set_xlim(-0.2, min(size, ROW) + 0.2)
    axes.set_ylim(-4 * rows + 0.4, 0.6)
    axes.set_axis_off()
    for index, token in enumerate(encoding.tokens):
        _draw_token(axes, token, FILLS[index % len(FILLS)])
    for start, end, character in _characters(encoding.text):
        for row, low, high in _rows(start, end):
            axes.text((low + high) / 2, -4 * row, _shown(character), ha="center", va="center", fontsize=8, color=INK)
            axes.plot([low + 0.1, high - 0.1], [-4 * row - 0.45] * 2, color=RULE, linewidth=1)
    for index, byte in enumerate(encoding.text.encode("utf-8")):
        row, column = divmod(index, ROW)
        style: dict[str, Any] = {"ha": "center", "fontsize": 5.5, "family": "monospace"}
        axes.text(column + 0.5, -4 * row - 2.25, f"{byte:02x}", va="center", color=INK, **style)
        if column % 5 == 0:
            axes.text(column + 0.5, -4 * row - 2.75, str(index), va="center", color=QUIET, **style)
    return figure


def _draw_node(axes: "Axes", node: MergeNode, place: int, *, top: bool) -> tuple[float, float]:
    """Draw a node above its parts; where it stands."""
    if node.left is None or node.right is None:
        x, y, label, fill = float(place), 0.0, f"{to_symbols(node.data)}\n{node.data.hex()}", PAPER
    else:
        left = _draw_node(axes, node.left, place, top=False)
        right = _draw_node(axes, node.right, place + len(node.left.data), top=False)
        x, y = (left[0] + right[0]) / 2, float(_height(node))
        for part in (left, right):
            axes.plot([x, part[0]], [y, part[1]], color=QUIET, linewidth=1, zorder=1)
        label, fill = f"{to_symbols(node.data)}\nrank {node.rank}", SKY
    label += f"\nid {node.token_id}" if top else ""
    box = {
        "boxstyle": "round,pad=0.25",
        "facecolor": fill,
        "edgecolor": BLUE if top else QUIET,
        "linewidth": 2 if top else 0.8,
    }
    axes.text(x, y, label, ha="center", va="center", fontsize=8, color=INK, bbox=box, zorder=2)
    return x, y


def _height(node: MergeNode) -> int:
    """Merges from a node down to its deepest byte."""
    return 0 if node.left is None or node.right is None else 1 + max(_height(node.left), _height(node.right))


def _draw_token(axes: "Axes", token: Token, fill: str) -> None:
    """One token's box; a token that crosses the end of a row goes on in the next."""
    from matplotlib.patches import Rectangle

    for part, (row, low, high) in enumerate(_rows(token.byte_start, token.byte_end)):
        axes.add_patch(
            Rectangle(
                (low + 0.04, -4 * row - 1.9), high - low - 0.08, 1.3, facecolor=fill, alpha=0.55, edgecolor=INK, lw=0.6
            )
        )
        if part == 0:
            label = str(token.id)
            turned = 90 if 0.42 * len(label) > high - low else 0
            size = 6.5 if turned == 0 else 5
            axes.text(
                (low + high) / 2,
                -4 * row - 1.25,
                label,
                ha="center",
                va="center",
                fontsize=size,
                rotation=turned,
                color=INK,
            )


def _rows(start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Row, first and last column of each row that a stretch of bytes touches."""
    while start < end:
        row, column = divmod(start, ROW)
        stop = min(end, (row + 1) * ROW)
        yield row, column, column + stop - start
        start = stop


def _characters(text: str) -> Iterator[tuple[int, int, str]]:
    place = 0
    for character in text:
        size = len(character.encode("utf-8"))
        yield place, place + size, character
        place += size


def _shown(character: str) -> str:
    """A character as the figure's font can show it, its code point where the font has no glyph for it."""
    named = {" ": "·", "\n": "⏎", "\t": "⇥"}.get(character, character)
    if named.isprintable() and ord(named) in _glyphs():
        return "\\$" if named == "$" else named  # a dollar would begin mathematics
    return f"U+{ord(character):X}"


@cache
def _glyphs() -> frozenset[int]:
    """The code points that matplotlib's default font has glyphs for."""
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def _many(count: int, noun: str) -> str:
    """A count with its noun.

    >>> _many(1, "byte"), _many(2, "byte")
    ('1 byte', '2 bytes')
    """
    return f"{count} {noun}" + ("" if count == 1 else "s")
