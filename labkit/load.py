"""Joins checkpoint and model: a folder -> a GPT-2 that is ready to run."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.checkpoint import Mode, read_checkpoint
from labkit.config import GPT2Config
from labkit.errors import ArgumentError, ArgumentTypeError, MissingFileError
from labkit.model import GPT2, Attention, Operations
from labkit.outside import path_of
from labkit.storage import to_float32
from labkit.storage.memory import in_order

COMPUTE_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""What the forward pass computes in."""


def embedded() -> Path:
    """The folder of the checkpoint that comes with labkit."""
    return Path(__file__).parent / "data" / "tiny"


def folder_of(folder: str | Path | None) -> Path:
    """The folder that was given, else that of the embedded checkpoint; raises ``ArgumentTypeError`` for what is none."""
    return embedded() if folder is None else path_of(folder, "folder")


def load_gpt2(
    folder: str | Path | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    mode: Mode = "mapped",
    config: GPT2Config | Mapping[str, Any] | str | Path | None = None,
    untie: bool = False,
    attention: Attention = "eager",
    operations: Operations | None = None,
    block_operations: Mapping[int, Operations] | None = None,
) -> GPT2:
    """The GPT-2 in ``folder`` (default: the embedded checkpoint), computing in ``dtype`` (default: float32).

    With ``mode="mapped"`` a parameter stored in the compute dtype is a view of the file, ready at once; one stored in
    another is converted. bfloat16 and float16 Conv1D weights are laid out [out, in] in memory, for speed, under an
    unchanged shape. Raises what ``read_checkpoint`` raises, and ``ArgumentError`` for a dtype or device that is not there.

    >>> load_gpt2().load_report.mode
    'mapped'
    """
    wanted = torch.float32 if dtype is None else dtype
    if wanted not in COMPUTE_DTYPES:
        known = ", ".join(_short(each) for each in COMPUTE_DTYPES)
        raise ArgumentError("not a dtype to compute in", where="dtype", expected=known, got=dtype)
    if folder is None and not embedded().is_dir():
        raise MissingFileError("the embedded checkpoint is not installed", where=embedded(), fix="give a folder")
    conversion = Conversion(wanted, _device(device))
    checkpoint = read_checkpoint(folder_of(folder), mode=mode, config=config, untie=untie, convert=conversion)
    stored = ", ".join(checkpoint.report.dtypes)
    notes = (f"stored as {stored}, computed in {_short(wanted)} on {conversion.device}", *conversion.notes())
    return GPT2(
        checkpoint.config,
        checkpoint.parameters,
        attention=attention,
        operations=operations,
        block_operations=block_operations,
        load_report=replace(checkpoint.report, notes=(*checkpoint.report.notes, *notes)),
    )


class Conversion:
    """Brings one stored tensor at a time to the compute dtype and its device, and counts what had to be rounded."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self._rounded: dict[torch.dtype, list[int]] = {}  # stored dtype -> values that changed, values in all

    def __call__(self, name: str, tensor: Tensor) -> Tensor:
        converted = to_float32(tensor) if self.dtype == torch.float32 else tensor.to(self.dtype)
        if torch.promote_types(tensor.dtype, self.dtype) != self.dtype:  # not every value can be held
            back = converted.to(tensor.dtype)
            counts = self._rounded.setdefault(tensor.dtype, [0, 0])
            counts[0] += int(((back != tensor) & ~tensor.isnan()).sum())
            counts[1] += tensor.numel()
        converted = converted.to(self.device)
        if self.dtype in (torch.bfloat16, torch.float16) and name.startswith("h.") and converted.dim() == 2:
            converted = in_order(converted.t()).t()  # [in, out], in memory [out, in]
        return converted

    def notes(self) -> tuple[str, ...]:
        """What was rounded, a line for each stored dtype."""
        return tuple(
            f"{changed:,} of {numel:,} values stored as {_short(stored)} were rounded to {_short(self.dtype)}"
            for stored, (changed, numel) in self._rounded.items()
        )


def _device(device: str | torch.device) -> torch.device:
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, TypeError, ValueError, OverflowError) as error:
        reason = str(error).split("\n")[0]
        raise ArgumentTypeError("no such device here", where="device", got=repr(device), fix=reason) from error
    if place.type == "meta":
        raise ArgumentError("it holds no values", where="device", expected="cpu, cuda or mps", got="meta")
    return place


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
