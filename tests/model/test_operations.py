"""An operation exchanged in one block: the stage that it computes is the first to change, and no earlier one."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from labkit.errors import CheckpointError, UnknownNameError
from labkit.model import GPT2, Operations
from labkit.model.operations import add, attention_pattern, attention_scores, conv1d, embed, gelu_erf, layer_norm
from tests.model.pairs import IDS, pair

FAULTS: dict[str, tuple[dict[str, Callable[..., Any]], str]] = {
    "transposed c_proj": ({"attn_c_proj": lambda x, weight, bias: conv1d(x, weight.T, bias)}, "attn.out"),
    "erf gelu": ({"activation": gelu_erf}, "mlp.post"),
    "epsilon": ({"ln_1": lambda x, weight, bias, epsilon: layer_norm(x, weight, bias, 1e-2)}, "ln_1"),
    "order of q, k, v": (
        {"split_heads": lambda packed, heads: Operations().split_heads(packed, heads)[::-1]},
        "attn.q",
    ),
    "no mask": (
        {"pattern": lambda scores, visible: attention_pattern(scores, torch.ones_like(visible))},
        "attn.pattern",
    ),
    "no scale": ({"scores": lambda q, k, scale: attention_scores(q, k, 1.0)}, "attn.scores"),
    "no bias": ({"c_fc": lambda x, weight, bias: conv1d(x, weight, 0 * bias)}, "mlp.pre"),
    "residual from the norm": ({"resid_mid": lambda stream, normed, branch: add(normed, branch)}, "resid_mid"),
    "heads not transposed back": ({"merge_heads": lambda z: z.reshape(z.shape[0], z.shape[2], -1)}, "attn.out"),
}


def first_change(faulty: GPT2, clean: GPT2) -> str:
    actual, expected = faulty.run(IDS, taps="all").taps, clean.run(IDS, taps="all").taps
    return next(name for name in expected if not torch.equal(actual[name], expected[name]))


@pytest.mark.parametrize("block", [0, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_one_block_first_shows_at_its_stage(fault: str, block: int) -> None:
    clean = pair()[0]
    fields, stage = FAULTS[fault]
    faulty = dataclasses.replace(Operations(), **fields)  # type: ignore[arg-type]
    broken = GPT2(clean.config, clean.parameters_by_name, block_operations={block: faulty})
    assert first_change(broken, clean) == f"h.{block}.{stage}"


@pytest.mark.parametrize(
    ("fields", "stage"),
    [
        ({"wpe": lambda positions, table: embed(positions + 1, table)}, "wpe"),
        ({"embed": lambda tokens, places: tokens}, "embed"),
        ({"ln_f": lambda x, weight, bias, epsilon: x}, "ln_f"),
        ({"lm_head": lambda x, table: x @ table.flip(0).T}, "logits"),
    ],
)
def test_a_fault_outside_the_blocks(fields: dict[str, Callable[..., Any]], stage: str) -> None:
    clean = pair()[0]
    broken = GPT2(clean.config, clean.parameters_by_name, operations=dataclasses.replace(Operations(), **fields))
    assert first_change(broken, clean) == stage


def test_a_fault_in_the_operations_of_all_blocks_is_overridden_in_one() -> None:
    clean = pair()[0]
    erf = dataclasses.replace(Operations(), activation=gelu_erf)
    broken = GPT2(clean.config, clean.parameters_by_name, operations=erf, block_operations={0: Operations()})
    assert first_change(broken, clean) == "h.1.mlp.post"


def test_parameters_that_do_not_fit_the_config_are_refused() -> None:
    clean = pair()[0]
    given = dict(clean.parameters_by_name)
    with pytest.raises(CheckpointError, match=r"^ln_f\.bias: the parameter is missing"):
        GPT2(clean.config, {name: each for name, each in given.items() if name != "ln_f.bias"})
    with pytest.raises(CheckpointError, match=r"^lm_head\.weight: the config has no such parameter"):
        GPT2(clean.config, {**given, "lm_head.weight": given["wte.weight"]})
    with pytest.raises(CheckpointError, match=r"^ln_f\.bias: the shape is wrong \(expected \[24\], got \[25\]\)"):
        GPT2(clean.config, {**given, "ln_f.bias": torch.zeros(25)})
    with pytest.raises(CheckpointError, match="parameters differ in dtype or device"):
        GPT2(clean.config, {**given, "ln_f.bias": torch.zeros(24).half()})
    with pytest.raises(CheckpointError, match="parameters are not floating-point"):
        GPT2(clean.config, {name: each.int() for name, each in given.items()})
    with pytest.raises(UnknownNameError, match="no attention named 'flash'"):
        GPT2(clean.config, given, attention="flash")  # type: ignore[arg-type]
