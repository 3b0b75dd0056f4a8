"""A checkpoint and a prompt -> every operation by itself: its inputs, what it should give, and what rounding may do.

In: a folder, prompts, taps. Out: the tensors of one safetensors file, for the unit tests of an engine in any language:
run the operation on the file's inputs with the checkpoint's parameters, and hold every element to
``|actual - expected| <= budget``. The expected values are the operation in float64 on just these inputs, so no error
is inherited, and the budget is the one that a verdict judges the operation by.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from labkit.errors import UnknownNameError
from labkit.load import folder_of
from labkit.model.taps import match_taps, tap_names
from labkit.verification.budget import compared
from labkit.verification.chain import Inputs, Stage, build_chain
from labkit.verification.reference import load_reference, parameters_of
from labkit.verification.trace import TraceMetadata
from labkit.verification.trace_names import IDS, MASK, POSITIONS
from labkit.verification.trace_record import record_trace
from labkit.verification.verdict import expect_locally

FORMAT = "labkit-golden"
EXPECTED, BUDGET = ".expected", ".budget"
"""What follows a tap's name in the names of the two tensors that its operation is held to."""


@dataclass(frozen=True, kw_only=True)
class GoldenOperation:
    """One operation: the tap that it makes, the tensors of the file that it reads, the checkpoint's that it reads."""

    tap: str
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Golden:
    """What ``save_safetensors`` writes, and what it is."""

    operations: tuple[GoldenOperation, ...]
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        nbytes = sum(tensor.nbytes for tensor in self.tensors.values())
        return f"{len(self.operations)} operations in {len(self.tensors)} tensors, {nbytes:,} bytes"


def golden(
    folder: str | Path | None = None,
    *,
    prompts: Sequence[str] | None = None,
    ids: Sequence[Sequence[int]] | None = None,
    taps: str | Sequence[str] = "all",
    dtype: str = "float32",
) -> Golden:
    """Inputs, expected outputs and budgets of the operations that make ``taps``, in ``folder`` (default: the embedded one).

    The inputs are labkit's own run of the prompts in ``dtype``, which is also the dtype that the budget is for. Where
    an element means nothing (padding, scores of the future) the budget is infinite; where the operation is exact it
    is 0. Raises a ``LabkitError`` where the folder, a prompt or a tap cannot be used.

    >>> made = golden(ids=[[5, 6, 7]], taps="h.0.resid_mid")
    >>> list(made.tensors)
    ['input_ids', 'position_ids', 'embed', 'h.0.attn.out', 'h.0.resid_mid.expected', 'h.0.resid_mid.budget']
    >>> made.operations[0].inputs
    ('h.0.attn.out', 'embed')
    """
    path = folder_of(folder)
    recorded = record_trace(path, engine="labkit", prompts=prompts, ids=ids, dtype=dtype)
    config, precision = recorded.metadata.config, recorded.metadata.precision
    names = tap_names(config)
    wanted = match_taps(taps, config)
    for name in wanted:
        if name not in names:
            raise UnknownNameError.near("operation's tap", name, names)
    held = recorded.tensors
    inputs = Inputs(held[IDS], held.get(MASK), held.get(POSITIONS))
    weights = parameters_of(load_reference(path, weight_dtype=precision.weight, config=config))
    stages = build_chain(config, weights, inputs)
    given = {IDS: inputs.ids, POSITIONS: inputs.positions}
    given |= {} if inputs.attention_mask is None else {MASK: inputs.attention_mask}
    read = {source for name in wanted for source in stages[name].inputs}
    tensors = given | {name: held[name] for name in names if name in read}
    for name in wanted:
        expected = expect_locally(stages[name], stages, held, precision)
        seen = compared(name, inputs).expand_as(expected.output)
        tensors[name + EXPECTED] = expected.output
        tensors[name + BUDGET] = torch.where(seen, expected.budget, torch.inf).expand_as(expected.output)
    operations = tuple(_operation(stages[name], inputs) for name in wanted)
    return Golden(
        operations=operations,
        tensors=tensors,
        metadata=_metadata(recorded.metadata, operations),
        notes=recorded.notes,
    )


def _operation(stage: Stage, inputs: Inputs) -> GoldenOperation:
    beside = {"wte": (IDS,), "wpe": (POSITIONS,)}.get(stage.tap, ())
    if stage.tap.endswith(".attn.pattern") and inputs.attention_mask is not None:
        beside = (MASK,)
    return GoldenOperation(tap=stage.tap, inputs=(*stage.inputs, *beside), parameters=stage.tensors)


def _metadata(engine: TraceMetadata, operations: Sequence[GoldenOperation]) -> dict[str, str]:
    """A trace's metadata with a format of its own, and for each operation what it reads, as JSON."""
    read = {each.tap: {"inputs": each.inputs, "parameters": each.parameters} for each in operations}
    return {**engine.fields(), "format": FORMAT, "operations": json.dumps(read)}
