"""actual and expected values of a stage -> the view record of its error map: which elements are off, and by how much.

A big stage is cut to the slice that holds the largest error and binned: each cell shows the largest error in it.
"""

import math
from typing import TypedDict

import torch
from torch import Tensor

from labkit.model import tap_axes

MOST_ROWS, MOST_COLUMNS = 40, 64
DECADES = 3
"""Errors this many powers of ten below the largest are drawn as none."""


class ErrorMap(TypedDict):
    """Cells in percent of the colour scale, row by row, and what they are."""

    title: str
    rows_axis: str
    columns_axis: str
    cells: list[list[int]]
    rows_per_cell: int
    columns_per_cell: int
    largest: float
    worst: list[int]
    actual: float
    expected: float


def error_map(name: str, actual: Tensor, expected: Tensor) -> ErrorMap:
    """The error of the stage ``name`` over its last two axes, at the leading indices of the largest error.

    >>> import torch
    >>> a = torch.zeros(1, 2, 3); b = a.clone(); b[0, 1, 2] = 1e-3
    >>> view = error_map("embed", a, b)
    >>> view["title"], view["cells"], view["worst"]
    ('batch 0', [[0, 0, 0], [0, 0, 100]], [0, 1, 2])
    """
    axes = tap_axes(name)[-actual.dim() :]
    error = (actual.cpu().double() - expected.cpu().double()).abs().nan_to_num(nan=math.inf)
    worst = [int(i) for i in torch.unravel_index(error.argmax(), error.shape)]
    plane = error[tuple(worst[:-2])]  # [rows, columns]
    tall, wide = _per_cell(plane.shape[0], MOST_ROWS), _per_cell(plane.shape[1], MOST_COLUMNS)
    binned = _binned(plane, tall, wide)  # [cell rows, cell columns]
    return ErrorMap(
        title=", ".join(f"{axis} {index}" for axis, index in zip(axes, worst[:-2], strict=False)) or "all of it",
        rows_axis=axes[-2],
        columns_axis=axes[-1],
        cells=[[_strength(float(cell), float(binned.max())) for cell in row] for row in binned],
        rows_per_cell=tall,
        columns_per_cell=wide,
        largest=float(error.max()),
        worst=worst,
        actual=float(actual[tuple(worst)]),
        expected=float(expected[tuple(worst)]),
    )


def _per_cell(size: int, most: int) -> int:
    return -(-size // most)


def _binned(plane: Tensor, tall: int, wide: int) -> Tensor:
    """The largest of each ``tall`` by ``wide`` patch."""
    rows, columns = -(-plane.shape[0] // tall), -(-plane.shape[1] // wide)
    padded = torch.zeros(rows * tall, columns * wide, dtype=plane.dtype)  # [rows, columns]
    padded[: plane.shape[0], : plane.shape[1]] = plane
    return padded.reshape(rows, tall, columns, wide).amax(dim=(1, 3))  # [cell rows, cell columns]


def _strength(error: float, largest: float) -> int:
    """0 to 100 on a logarithmic scale.

    >>> _strength(1.0, 1.0), _strength(0.1, 1.0), _strength(0.0, 1.0)
    (100, 67, 0)
    """
    if not error > 0:
        return 0
    if not math.isfinite(largest):
        return 100 if not math.isfinite(error) else 0
    return max(0, round(100 * (1 + math.log10(error / largest) / DECADES)))
