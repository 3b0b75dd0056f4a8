"""Taps whose values lie in another order of axes, found by holding them against the truth.

Where two axes have one size (heads and positions, say), a transpose leaves the shape as it was. With the checkpoint
at hand the truth tells: a tap that misses it in the order written, and meets it in another, was laid out wrongly.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from labkit.config import GPT2Config
from labkit.model.taps import tap_axes
from labkit.verification.budget import compared
from labkit.verification.lint_defects import Defect
from labkit.verification.reference import capture, load_reference
from labkit.verification.trace import Trace
from labkit.verification.trace_layout import Layout
from labkit.verification.trace_sequence import TraceSequence

FITS = 0.05
"""A tap within this relative error (root mean square) of the truth has its layout right, whatever faults it has."""
MISSES = 0.2
"""Beyond this one a layout is worth asking about."""


def layout_defects(trace: Trace, folder: Path, config: GPT2Config) -> Iterator[Defect]:
    """Taps that meet the truth in another order of axes than the one they are written in."""
    sequence = TraceSequence(trace)
    inputs = sequence.inputs
    model = load_reference(folder, weight_dtype=trace.metadata.precision.weight, config=config)
    truth = capture(model, inputs.ids, attention_mask=inputs.attention_mask, position_ids=inputs.position_ids)
    for tap in sequence:
        value, true, mask = sequence[tap].double(), truth[tap], compared(tap, inputs)
        if value.shape == true.shape and _miss(value, true, mask) > MISSES:
            layout = fitting_layout(value, true, mask)
            if layout is not None:
                yield Defect(
                    code="layout",
                    tensor=tap,
                    what=written_otherwise(tap, layout),
                    fix=f"{layout.describe(value.shape)} before recording",
                )


def written_otherwise(tap: str, layout: Layout) -> str:
    """In which order of its axes a tap was written, in words."""
    axes = ("batch", *tap_axes(tap))[-len(layout.order) :]  # wpe may have a batch axis or none
    return (
        f"the values were written as [{', '.join(axes[each] for each in layout.order)}] in place of [{', '.join(axes)}]"
    )


def fitting_layout(value: Tensor, true: Tensor, mask: Tensor) -> Layout | None:
    """The other order of axes in which a value meets the truth, if one does."""
    for order in itertools.permutations(range(true.dim())):
        layout = Layout(tuple(true.shape), order)
        if layout.displaced and _miss(layout.restore(value), true, mask) < FITS:
            return layout
    return None


def _miss(value: Tensor, true: Tensor, mask: Tensor) -> float:
    """Root mean square of the error over that of the truth, where it counts."""
    off = torch.where(mask, value - true, 0.0).nan_to_num(nan=torch.inf)
    return float(off.norm() / torch.where(mask, true, 0.0).norm().clamp(min=1e-300))
