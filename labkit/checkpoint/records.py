"""What a checkpoint's files hold and what became of it: plain frozen records."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from labkit.config import GPT2Config
from labkit.words import counted

Use = Literal["parameter", "tied head", "causal mask", "cross-attention", "other head"]
"""What became of a tensor: it fills a parameter, or it is left out for the reason named."""


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """A tensor's values in four numbers, computed in float64, and how many of them are not finite."""

    minimum: float | None  # None where no value is finite
    maximum: float | None
    mean: float | None
    std: float | None
    nonfinite: int


@dataclass(frozen=True, kw_only=True)
class TensorRow:
    """One tensor of the files, where it lies, and what became of it."""

    name: str  # as the file has it
    shard: str  # file name
    begin: int | None  # absolute byte offsets in the shard; None in a pickle, which has no plain ranges
    end: int | None
    dtype: str  # the file's code, such as F32
    shape: tuple[int, ...]
    use: Use
    parameter: str | None  # the parameter it fills
    transposed: bool  # stored [out, in], turned to [in, out]
    reason: str  # why it was left, or what had to be done to it; empty where nothing was
    statistics: Statistics | None = None

    @property
    def numel(self) -> int:
        """Elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """The whole mapping from files to parameters: nothing is left without a line."""

    folder: str
    mode: Literal["mapped", "owned"]
    rows: tuple[TensorRow, ...]
    notes: tuple[str, ...]

    @property
    def parameters(self) -> tuple[TensorRow, ...]:
        """The rows that fill a parameter."""
        return tuple(row for row in self.rows if row.parameter is not None)

    @property
    def left_out(self) -> tuple[TensorRow, ...]:
        """The rows that do not."""
        return tuple(row for row in self.rows if row.parameter is None)

    @property
    def dtypes(self) -> dict[str, int]:
        """Stored dtype codes of the parameters, with the number of tensors of each."""
        counts: dict[str, int] = {}
        for row in self.parameters:
            counts[row.dtype] = counts.get(row.dtype, 0) + 1
        return counts

    def __str__(self) -> str:
        stored = ", ".join(f"{count} {code}" for code, count in self.dtypes.items())
        numel = sum(row.numel for row in self.parameters)
        counts = f"{counted(len(self.parameters), 'tensor')} loaded ({stored}; {numel:,} parameters), {len(self.left_out)} left out"
        return "\n".join([f"{self.folder}: {counts}", *(f"  {note}" for note in self.notes)])


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint read: its config, every parameter under the released files' name, and how it came about."""

    config: GPT2Config
    parameters: Mapping[str, Tensor]  # Conv1D weights are [in, out]
    report: LoadReport
    folder: Path
