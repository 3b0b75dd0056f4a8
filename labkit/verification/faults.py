"""Named faults, planted in a real forward of labkit's model: what a port gets wrong, on purpose.

A fault edits the model's parameters or exchanges one of its operations in one block. None of this shares code with
the replay of hypotheses, so that a diagnosis which names a planted fault has found it and not recognised itself.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from labkit.errors import ArgumentError, OutOfRangeError, UnknownNameError
from labkit.model import GPT2
from labkit.model.operations import Operations

Edit = Callable[[dict[str, Tensor], str], None]
"""Changes the parameters of one block in place; the second argument is the block's prefix, ``h.3``."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One mistake: its name, what was done wrong, and the first stage that shows it (``{b}`` stands for the block)."""

    name: str
    mistake: str
    stage: str
    operations: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of ``Operations`` that compute something else."""
    edit: Edit | None = None

    def plant(self, model: GPT2, block: int) -> GPT2:
        """A model that shares ``model``'s parameters but makes this mistake in ``block``."""
        if not 0 <= block < model.config.n_layer:
            raise OutOfRangeError(
                f"fault {self.name} cannot be planted in block {block}",
                expected=f"0 to {model.config.n_layer - 1}",
                got=block,
            )
        parameters = dict(model.parameters_by_name)
        if self.edit is not None:
            self.edit(parameters, f"h.{block}")
        faulty = {block: dataclasses.replace(Operations(), **self.operations)} if self.operations else {}
        return GPT2(model.config, parameters, block_operations=faulty, load_report=model.load_report)

    def expected_stage(self, block: int) -> str:
        """The first tap at which the fault shows."""
        return self.stage.format(b=block)


def _transpose_c_proj(parameters: dict[str, Tensor], h: str) -> None:
    name = f"{h}.attn.c_proj.weight"
    parameters[name] = parameters[name].T.contiguous()


def _qkv_order(parameters: dict[str, Tensor], h: str) -> None:
    for name in (f"{h}.attn.c_attn.weight", f"{h}.attn.c_attn.bias"):
        q, k, v = parameters[name].chunk(3, dim=-1)
        parameters[name] = torch.cat([k, q, v], dim=-1)


def _norm_epsilon(x: Tensor, weight: Tensor, bias: Tensor, _epsilon: float) -> Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias, 1e-6)


def _no_mask(scores: Tensor, _visible: Tensor) -> Tensor:
    return scores.softmax(dim=-1)


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            name="transpose-c_proj",
            mistake="the square attn.c_proj.weight is used as [out, in]",
            stage="h.{b}.attn.out",
            edit=_transpose_c_proj,
        ),
        Fault(
            name="erf-gelu",
            mistake="GELU by the error function instead of tanh",
            stage="h.{b}.mlp.post",
            operations={"activation": functional.gelu},
        ),
        Fault(
            name="epsilon-1e-6",
            mistake="ln_1 adds 1e-6 instead of layer_norm_epsilon",
            stage="h.{b}.ln_1",
            operations={"ln_1": _norm_epsilon},
        ),
        Fault(
            name="qkv-order",
            mistake="c_attn's columns are taken as K, Q, V",
            stage="h.{b}.attn.q",
            edit=_qkv_order,
        ),
        Fault(
            name="no-mask",
            mistake="the causal mask is left out",
            stage="h.{b}.attn.pattern",
            operations={"pattern": _no_mask},
        ),
    )
}


def parse_fault(text: str) -> tuple[Fault, int]:
    """``NAME`` or ``NAME:BLOCK`` -> the fault and the block (0 unless given).

    >>> fault, block = parse_fault("no-mask:3")
    >>> fault.expected_stage(block)
    'h.3.attn.pattern'
    """
    name, _, place = text.partition(":")
    if name not in FAULTS:
        raise UnknownNameError.near("fault", name, FAULTS)
    if place and not place.isdecimal():
        raise ArgumentError("the block of a fault is not a number", expected="NAME or NAME:BLOCK", got=repr(text))
    return FAULTS[name], int(place or 0)
