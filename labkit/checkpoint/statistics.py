"""A report's tensors -> the same report with statistics of their values, read one tensor at a time."""

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from labkit.checkpoint.records import LoadReport, Statistics
from labkit.storage import open_snapshot

_CHUNK_NUMEL = 1 << 22  # widened to float64 at once: 32 MiB


def add_statistics(report: LoadReport) -> LoadReport:
    """The report with the statistics of every tensor, those left out included; every byte is read once."""
    with open_snapshot(Path(report.folder), mode="mapped") as snapshot:
        rows = tuple(replace(row, statistics=tensor_statistics(snapshot[row.name])) for row in report.rows)
    return replace(report, rows=rows)


def tensor_statistics(tensor: Tensor) -> Statistics | None:
    """Minimum, maximum, mean and standard deviation of the finite values; None where there is no value at all.

    >>> import torch
    >>> tensor_statistics(torch.tensor([1.0, 3.0, float("nan")]))
    Statistics(minimum=1.0, maximum=3.0, mean=2.0, std=1.0, nonfinite=1)
    """
    count, nonfinite, total, squares = 0, 0, 0.0, 0.0
    low, high = float("inf"), float("-inf")
    pivot: float | None = None
    flat = tensor.reshape(-1)  # [numel]
    for start in range(0, flat.numel(), _CHUNK_NUMEL):
        values = flat[start : start + _CHUNK_NUMEL].double()  # [chunk]
        finite = values[values.isfinite()]  # [chunk], fewer where some are not finite
        nonfinite += values.numel() - finite.numel()
        if not finite.numel():
            continue
        pivot = float(finite[0]) if pivot is None else pivot  # sums around a value of their own size keep their digits
        centred = finite - pivot
        count += finite.numel()
        total += float(centred.sum())
        squares += float((centred * centred).sum())
        low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    if pivot is None:
        return Statistics(minimum=None, maximum=None, mean=None, std=None, nonfinite=nonfinite) if nonfinite else None
    mean = total / count
    variance = max(squares / count - mean * mean, 0.0)
    return Statistics(minimum=low, maximum=high, mean=pivot + mean, std=variance**0.5, nonfinite=nonfinite)
