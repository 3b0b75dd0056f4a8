"""Storage records -> figures: the file to scale, a tensor's histogram, the bits of one number.

Names come from files: they are drawn as plain text, with ``$`` and control characters made harmless.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from labkit.figures.style import BLUE, GREEN, INK, ORANGE, PAPER, PURPLE, QUIET, SKY, VERMILLION, dress, new_figure
from labkit.outside import safe
from labkit.storage import Header, SafetensorsFile
from labkit.storage.header import PREFIX_NBYTES
from labkit.storage.widening import float64_values
from labkit.storage.widening_by_hand import BitFields
from labkit.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

BLOCK_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION)
"""Blocks take these in turn; tensors outside any block are grey."""
LANES = 16
"""Rows that the data section is broken into, as lines of a page."""
MAXIMUM_PIECES = 4000
"""Rectangles drawn; beyond it neighbours of one colour are drawn as one, down to what a pixel can show."""
MAXIMUM_LABELS = 64
"""Blocks that are labelled; more would hide the picture."""
BINS = 101
_BLOCK = re.compile(r"(?:^|\.)(?:h|layers?|blocks?)\.([0-9]{1,9})\.")
_OUTSIDE = "#9a9a94"


def draw_layout(header: Header) -> "Figure":
    """The file to scale: prefix, header and padding in a strip, then the data section in rows, coloured by block.

    A tensor that does not start at a multiple of its element's size has a notch at its start.

    >>> import tempfile, torch; from pathlib import Path; from labkit.storage import read_header, save_safetensors
    >>> path = Path(tempfile.mkdtemp()) / "one.safetensors"; save_safetensors({"h.0.w": torch.ones(4)}, path)
    >>> draw_layout(read_header(path)).get_suptitle()
    'one.safetensors: 1 tensor, 88 bytes, data from byte 72'
    """
    count = len(header.entries)
    title = (
        f"{plain(header.path.name)}: {count:,} tensor{'s' if count != 1 else ''}, "
        f"{header.file_nbytes:,} bytes, data from byte {header.data_start:,}"
    )
    figure = new_figure(title, width=9.0, height=4.6)
    top, data = figure.subplots(2, 1, height_ratios=(1, 7))
    _draw_front(top, header)
    _draw_data(data, header)
    return figure


def draw_histogram(file: SafetensorsFile, name: str) -> "Figure":
    """How a tensor's finite values are spread, counts on a logarithmic axis; read a chunk at a time."""
    import numpy as np

    from labkit.storage.statistics import measure_tensor

    found = measure_tensor(file, name)
    figure = new_figure(f"{plain(name)}: {found.dtype} {list(found.shape)}", width=7.0, height=3.4)
    axes = dress(figure.subplots(), x="value", y="elements")
    said = f"mean {found.mean:.4g}, std {found.std:.4g}, zeros {found.zeros:,}, NaN {found.nans:,}, Inf {found.infinities:,}"
    axes.set_title(said, fontsize=9, color=QUIET, loc="left")
    if found.numel == found.nans + found.infinities:
        axes.text(0.5, 0.5, "no finite value", ha="center", transform=axes.transAxes, color=INK)
        return figure
    width = found.maximum - found.minimum
    edges = np.linspace(found.minimum, found.maximum, BINS) if 0 < width < np.inf else _around(found.minimum)
    counts = np.zeros(len(edges) - 1, dtype=np.int64)  # [bin]
    for raw in file.chunks(name):
        values = float64_values(raw, found.dtype)  # [chunk]
        counts += np.histogram(values[values.isfinite()].numpy(), bins=edges)[0]
    axes.stairs(counts, edges, fill=True, color=BLUE)
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=0)
    return figure


def draw_bits(fields: BitFields) -> "Figure":
    """One number's bits, field by field, with the value they make.

    >>> from labkit.storage.widening_by_hand import bit_fields
    >>> draw_bits(bit_fields("BF16", 0xC020)).get_suptitle()
    'BF16 0xc020 = -2.5'
    """
    text = "".join(bits for _, bits in fields.fields)
    number = int(text, 2)
    digits = -(-len(text) // 4)
    title = f"{fields.code} 0x{number:0{digits}x} = {fields.value}"
    figure = new_figure(title, width=max(4.0, 0.26 * len(text) + 1), height=1.8)
    axes = figure.subplots()
    axes.axis("off")
    colours = dict(zip(("sign", "exponent", "mantissa", "value", "real", "imaginary"), BLOCK_COLOURS, strict=True))
    place = 0
    for name, bits in fields.fields:
        for bit in bits:
            axes.add_patch(_box(place, colours[name], filled=bit == "1"))
            axes.text(place + 0.5, 0.5, bit, ha="center", va="center", fontsize=9, color=INK, family="monospace")
            place += 1
        axes.text(place - len(bits) / 2, 1.25, f"{name} ({len(bits)})", ha="center", fontsize=8, color=INK)
    axes.text(0, -0.75, plain(fields.formula), fontsize=9, color=QUIET)
    axes.set_xlim(-0.2, place + 0.2)
    axes.set_ylim(-1.2, 1.8)
    return figure


def plain(text: str) -> str:
    """A file's own string for a figure: no mathematics, no control characters, not too long.

    >>> plain("a$b$" + chr(27)), len(plain("x" * 500))
    ('a\\\\$b\\\\$\\\\x1b', 61)
    """
    shown = safe(text)
    return (shown if len(shown) <= 60 else shown[:60] + "…").replace("$", "\\$")


def block_of(name: str) -> int | None:
    """The block that a parameter's name says it is in.

    >>> block_of("transformer.h.11.ln_1.weight"), block_of("wte.weight")
    (11, None)
    """
    match = _BLOCK.search(name)
    return int(match[1]) if match else None


def _draw_front(axes: "Axes", header: Header) -> None:
    """The bytes in front of the data section, to their own scale."""
    from matplotlib.patches import Rectangle

    json_end = header.data_start - header.padding_nbytes
    parts = (
        (0, PREFIX_NBYTES, PURPLE, "prefix"),
        (PREFIX_NBYTES, json_end, SKY, f"header, {json_end - PREFIX_NBYTES:,} bytes of JSON"),
        (json_end, header.data_start, _OUTSIDE, f"{header.padding_nbytes:,} of padding"),
    )
    for begin, end, colour, label in parts:
        axes.add_patch(Rectangle((begin, 0), end - begin, 1, facecolor=colour, edgecolor=PAPER, linewidth=0.5))
        if end - begin > 0.2 * header.data_start:
            axes.text((begin + end) / 2, 0.5, label, ha="center", va="center", fontsize=8, color=INK)
    dress(axes, x="byte of the file").grid(visible=False)
    axes.set_xlim(0, header.data_start)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _draw_data(axes: "Axes", header: Header) -> None:
    from matplotlib.collections import PolyCollection

    lane = max(-(-header.data_nbytes // LANES), 1)
    pieces = _pieces(header, lane)
    boxes = [_corners(begin, end, lane) for begin, end, _ in pieces]
    axes.add_collection(
        PolyCollection(boxes, facecolors=[colour for *_, colour in pieces], edgecolors=PAPER, linewidths=0.3)
    )
    unaligned = _unaligned(header)
    notches = unaligned[:MAXIMUM_PIECES]
    if notches:
        axes.scatter(
            [begin % lane for begin in notches],
            [begin // lane + 0.12 for begin in notches],
            marker="v",
            s=14,
            color=INK,
            label=f"{counted(len(unaligned), 'tensor')} not at a multiple of {'its' if len(unaligned) == 1 else 'their'} own size",
        )
        axes.legend(loc="upper right", fontsize=8, facecolor=PAPER)
    for label, begin, end in _labels(header, lane):
        box = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.85, "pad": 1.0}
        axes.text(
            (begin + end) / 2 % lane,
            begin // lane + 0.5,
            label,
            ha="center",
            va="center",
            fontsize=7,
            color=INK,
            bbox=box,
        )
    dress(axes, x="bytes from the start of the row", y="row of the data section").grid(visible=False)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(0, lane)
    axes.set_ylim(LANES, 0)


def _pieces(header: Header, lane: int) -> list[tuple[int, int, str]]:
    """[begin, end) and colour of every rectangle: no piece crosses a row, and where there are many, neighbours join."""
    coarse = -(-lane * LANES // MAXIMUM_PIECES) if len(header.entries) > MAXIMUM_PIECES else 0
    joined: list[tuple[int, int, str]] = []
    for name in header.names():
        entry = header.entries[name]
        block = block_of(name)
        colour = _OUTSIDE if block is None else BLOCK_COLOURS[block % len(BLOCK_COLOURS)]
        if joined and coarse and (joined[-1][2] == colour or entry.end - joined[-1][0] <= coarse):
            joined[-1] = (joined[-1][0], entry.end, joined[-1][2])
        elif entry.nbytes:
            joined.append((entry.begin, entry.end, colour))
    return [
        (max(begin, row * lane), min(end, (row + 1) * lane), colour)
        for begin, end, colour in joined
        for row in range(begin // lane, (end - 1) // lane + 1)
    ]


def _labels(header: Header, lane: int) -> list[tuple[str, int, int]]:
    """A label for each block (and for what is in none) and the widest stretch of a row that it has; none for many blocks."""
    widest: dict[int | None, tuple[int, int]] = {}
    for name in header.names():
        entry = header.entries[name]
        for row in range(entry.begin // lane, max(entry.end - 1, 0) // lane + 1):
            begin, end = max(entry.begin, row * lane), min(entry.end, (row + 1) * lane)
            kept = widest.get(block_of(name), (0, 0))
            if end - begin > kept[1] - kept[0]:
                widest[block_of(name)] = (begin, end)
    if len(widest) > MAXIMUM_LABELS:
        return []
    return [
        (f"block {block}" if block is not None else "outside the blocks", *place) for block, place in widest.items()
    ]


def _unaligned(header: Header) -> list[int]:
    """Where the tensors begin that do not start at a multiple of their element's size, as bytes of the data section."""
    from labkit.storage.dtypes import BITS

    return [
        entry.begin
        for entry in header.entries.values()
        if entry.nbytes and (header.data_start + entry.begin) % max(BITS[entry.dtype] // 8, 1)
    ]


def _corners(begin: int, end: int, lane: int) -> Sequence[tuple[float, float]]:
    row = begin // lane
    left, right = begin - row * lane, end - row * lane
    return [(left, row + 0.1), (right, row + 0.1), (right, row + 0.9), (left, row + 0.9)]


def _around(value: float) -> "Sequence[float]":
    """Edges of one bin around a value that all elements share."""
    half = abs(value) / 2 or 0.5
    return [value - half, value + half]


def _box(place: int, colour: str, *, filled: bool) -> "Patch":
    from matplotlib.patches import Rectangle

    return Rectangle(
        (place, 0), 1, 1, facecolor=colour if filled else PAPER, edgecolor=colour, linewidth=1.2, alpha=0.75
    )
