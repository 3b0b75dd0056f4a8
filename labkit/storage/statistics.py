"""A tensor's bytes -> its statistics, streaming: no more than a chunk of it is in memory.

In: an open file and a name. Out: a ``TensorStatistics``. Everything is computed in float64; minimum, maximum, mean and
standard deviation are over the finite values.
"""

import math
from dataclasses import dataclass

import torch

from labkit.storage.file import CHUNK_NBYTES, SafetensorsFile
from labkit.storage.widening import float64_values


@dataclass(frozen=True)
class TensorStatistics:
    """What the values of one tensor are like; ``minimum`` to ``std`` are NaN where no value is finite."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    numel: int
    minimum: float
    maximum: float
    mean: float
    std: float
    zeros: int
    nans: int
    infinities: int


def measure_tensor(file: SafetensorsFile, name: str, *, max_nbytes: int = CHUNK_NBYTES) -> TensorStatistics:
    """The statistics of one tensor of an open file.

    >>> import labkit.storage, tempfile; from pathlib import Path; path = Path(tempfile.mkdtemp()) / "one.safetensors"
    >>> labkit.storage.save_safetensors({"a": torch.tensor([0.0, 1.0, 2.0, float("inf")])}, path)
    >>> with labkit.storage.open_safetensors(path) as file:
    ...     found = measure_tensor(file, "a")
    >>> found.mean, found.maximum, found.zeros, found.infinities
    (1.0, 2.0, 1, 1)

    ``std`` divides by n. A C64 counts as its real and imaginary parts.
    """
    entry = file.header.entry(name)
    minimum, maximum = math.inf, -math.inf
    count, mean, squares = 0, 0.0, 0.0  # of the finite values: how many, their mean, the sum of squares around it
    zeros = nans = infinities = 0
    for raw in file.chunks(name, max_nbytes=max_nbytes):
        values = float64_values(raw, entry.dtype)  # [numel of the chunk]
        zeros += int((values == 0).sum())
        nans += int(values.isnan().sum())
        infinities += int(values.isinf().sum())
        finite = values[values.isfinite()]
        if finite.numel() == 0:
            continue
        low, high = torch.aminmax(finite)
        minimum, maximum = min(minimum, float(low)), max(maximum, float(high))
        chunk_mean = float(finite.mean())
        total = count + finite.numel()
        shift = chunk_mean - mean
        squares += float((finite - chunk_mean).square().sum()) + shift * shift * count * finite.numel() / total
        mean += shift * finite.numel() / total
        count = total
    if count == 0:
        minimum = maximum = mean = std = math.nan
    else:
        std = math.sqrt(squares / count)
    return TensorStatistics(
        name, entry.dtype, entry.shape, entry.numel, minimum, maximum, mean, std, zeros, nans, infinities
    )
