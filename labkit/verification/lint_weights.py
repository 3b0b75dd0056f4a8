"""The dtype of the weights that a trace declares, held against its rows of wte and wpe: both are copies of weights."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from labkit.config import GPT2Config
from labkit.verification.budget import compared
from labkit.verification.chain import build_chain
from labkit.verification.lint_defects import Defect
from labkit.verification.precision import DTYPES, dtype_name, held_in, unit_roundoff
from labkit.verification.readings import OF_A_TRACE
from labkit.verification.reference import load_reference, parameters_of
from labkit.verification.trace import Trace
from labkit.verification.trace_sequence import TraceSequence

TABLES = ("wte", "wpe")
CANDIDATES = ("float32", "bfloat16", "float16")


def unheld_weights(trace: Trace) -> Iterator[Defect]:
    """Rows of a table with values that the declared dtype does not hold; no checkpoint is needed to see that."""
    declared = trace.metadata.precision.weight
    sequence = TraceSequence(trace)
    for tap in TABLES:
        if tap in sequence and _wider(sequence[tap].dtype, declared):
            value = sequence[tap]
            held = held_in(value, declared) | ~compared(tap, sequence.inputs).expand(value.shape)
            if not bool(held.all()):
                name = dtype_name(declared)
                yield Defect(
                    code="precision",
                    tensor=tap,
                    what=f"weight_dtype says {name}, but {int((~held).sum())} of {value.numel()} elements are no {name} numbers",
                    fix="write the dtype that your weights are held in",
                )


def other_weights(trace: Trace, folder: Path, config: GPT2Config) -> Iterator[Defect]:
    """Rows of a table that are those of the checkpoint's weights in another dtype than declared."""
    sequence, declared = TraceSequence(trace), trace.metadata.precision.weight
    tables = [tap for tap in TABLES if tap in sequence and not _wider(declared, sequence[tap].dtype)]
    if not tables or _rows_agree(sequence, folder, config, declared, tables):
        return
    for name in CANDIDATES:
        if DTYPES[name] != declared and _rows_agree(sequence, folder, config, DTYPES[name], tables):
            what, fix = OF_A_TRACE.other_weights(declared, DTYPES[name])
            yield Defect(code="precision", tensor=tables[0], what=what, fix=fix)
            return


def _wider(one: torch.dtype, other: torch.dtype) -> bool:
    return unit_roundoff(one) < unit_roundoff(other)


def _rows_agree(
    sequence: TraceSequence, folder: Path, config: GPT2Config, dtype: torch.dtype, tables: list[str]
) -> bool:
    """Whether the recorded rows are exactly those of the weights in ``dtype``."""
    weights = parameters_of(load_reference(folder, weight_dtype=dtype, config=config))
    stages = build_chain(config, weights, sequence.inputs)
    return all(_rows_equal(sequence[tap], stages[tap].operation.compute(), sequence, tap) for tap in tables)


def _rows_equal(value: Tensor, rows: Tensor, sequence: TraceSequence, tap: str) -> bool:
    if value.shape != rows.shape:
        return False
    return bool(((value.double() == rows) | ~compared(tap, sequence.inputs).expand(rows.shape)).all())
