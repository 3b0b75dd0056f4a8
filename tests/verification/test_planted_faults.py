"""Every fault can be planted wherever it says that it applies: in every dtype, with odd sizes, one token, decode steps."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import labkit
from labkit.errors import ArgumentError
from labkit.generation import KVCache
from labkit.load import load_gpt2
from labkit.model import GPT2
from labkit.verification.chain import Inputs
from labkit.verification.faults import FAULTS, Fault
from labkit.verification.invariants import check_model
from labkit.verification.precision import DTYPES, Precision
from labkit.verification.rehearsal import Rehearsal
from labkit.verification.standard import Standard
from labkit.verification.trace_record import record_trace
from tests.oracles import random_checkpoint

SHAPES: dict[str, dict[str, Any]] = {
    "odd sizes": {"n_embd": 21, "n_head": 3, "n_inner": 33, "n_layer": 2},
    "one head, one block": {"n_embd": 15, "n_head": 1, "n_layer": 1, "tie_word_embeddings": False},
    "even and square": {"n_embd": 24, "n_head": 4, "n_inner": 24, "n_layer": 2, "n_positions": 70},
    "one channel a head": {"n_embd": 3, "n_head": 3, "n_layer": 1},
}
ROWS = ([[5, 17, 3, 60, 42]], [[5]])
WHOLE_ONLY = {"scores-transposed", "wrong-head-count"}
"""Faults that need all positions at once: they have no decode steps."""


def applying(model: GPT2) -> Iterator[tuple[Fault, int]]:
    """Each fault once, in the first block that has room for it."""
    for fault in FAULTS.values():
        block = next((b for b in range(model.config.n_layer) if fault.applies(model.config, b)), None)
        if block is not None:
            yield fault, block


def cached(model: GPT2, ids: Tensor) -> Mapping[str, Tensor]:
    """The taps of the last position, the ones before it kept in a cache."""
    cache = KVCache(model.config, capacity=ids.shape[1], dtype=model.dtype)
    for column in torch.split(ids, 1, dim=1):
        taps = model.run(column, taps="all", cache=cache).taps
    return taps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_fault_runs(shape: str, dtype: str, tmp_path: Path) -> None:
    random_checkpoint.write(tmp_path, seed=3, **SHAPES[shape])
    model = load_gpt2(tmp_path, dtype=DTYPES[dtype])
    for fault, block in applying(model):
        wrong = fault.plant(model, block)
        for rows in map(torch.tensor, ROWS):
            assert wrong.run(rows, taps="all").logits.dtype == model.dtype
            if fault.name not in WHOLE_ONLY:
                assert cached(wrong, rows)["logits"].dtype == model.dtype


@pytest.mark.parametrize("rows", ROWS, ids=["five tokens", "one token"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_hypothesis_is_replayed(shape: str, rows: list[list[int]], tmp_path: Path) -> None:
    """In bfloat16 each site is replayed, also that of a clean run."""
    random_checkpoint.write(tmp_path, seed=3, **SHAPES[shape])
    assert labkit.verify(tmp_path, ids=rows, tokens=1, dtype="bfloat16").verdict == "same"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_fault_is_judged_and_asked_for_every_invariant(shape: str, dtype: str, tmp_path: Path) -> None:
    random_checkpoint.write(tmp_path, seed=3, **SHAPES[shape])
    model, rows = load_gpt2(tmp_path, dtype=DTYPES[dtype]), torch.tensor(ROWS[0])
    rehearsal = Rehearsal.prepare(Standard(tmp_path, model.config, Precision.of(model.dtype)), Inputs(rows))
    clean = rehearsal.judge(model.run(rows, taps="all").taps)
    for fault, block in applying(model):
        wrong = fault.plant(model, block)
        rehearsal.judge(wrong.run(rows, taps="all").taps, base=clean)
        results = check_model(wrong, reference=model, ids=ROWS[0])
        failed = [result.name for result in results if "could not be run" in result.detail]
        assert failed == (["cache"] if fault.name in WHOLE_ONLY else []), fault.name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_keys_are_mixed_where_attention_is_upcast(dtype: str, tmp_path: Path) -> None:
    random_checkpoint.write(tmp_path, reorder_and_upcast_attn=True)
    model = FAULTS["mix-of-keys"].plant(load_gpt2(tmp_path, dtype=DTYPES[dtype]))
    assert model(ROWS[0]).dtype == DTYPES[dtype]


def test_a_fault_means_the_same_in_a_decode_step(tmp_path: Path) -> None:
    random_checkpoint.write(tmp_path)
    ids = torch.tensor(ROWS[0])
    model = load_gpt2(tmp_path, dtype=torch.float64)
    for name in ("mask-one-ahead", "mask-excludes-itself"):
        wrong = FAULTS[name].plant(model, 2)
        whole = wrong.run(ids, taps="h.2.attn.pattern").taps["h.2.attn.pattern"][:, :, -1:]
        torch.testing.assert_close(cached(wrong, ids)["h.2.attn.pattern"], whole)


def test_faults_that_need_all_positions_say_so() -> None:
    record = {"engine": "labkit", "ids": [[5, 6, 7]], "taps": "h.0.attn.*"}
    assert record_trace(plant=["wrong-head-count"], **record).tensors["h.0.attn.q"].shape == (1, 3, 3, 64)
    assert "h.0.attn.scores" in record_trace(plant=["scores-transposed"], **record).tensors
    with pytest.raises(ArgumentError, match=r"expected \[batch 1, head 6, pos, head_dim 32\], got \[1, 3, 3, 64\]"):
        record_trace(plant=["wrong-head-count"], steps=1, **record)
    with pytest.raises(ArgumentError, match="without decode steps"):
        record_trace(plant=["scores-transposed"], steps=1, **record)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_tf32_holds_what_a_short_dtype_holds(dtype: str) -> None:
    model = load_gpt2(dtype=DTYPES[dtype])
    weight = model.parameters_by_name["h.0.mlp.c_fc.weight"]  # [n_embd, n_inner]
    wrong = FAULTS["tf32-mlp.c_fc"].plant(model).block_operations[0].c_fc
    same = wrong(torch.eye(len(weight), dtype=weight.dtype), weight, torch.zeros_like(weight[0]))  # [n_embd, n_inner]
    assert torch.equal(same, weight)
