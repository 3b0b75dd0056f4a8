"""Reading and writing trace files: the contract, and what breaks it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from labkit.errors import TraceError
from labkit.storage import save_safetensors
from labkit.verification.precision import Precision
from labkit.verification.trace import (
    WHAT_TO_WRITE,
    TraceMetadata,
    metadata_problems,
    open_trace,
    parse_metadata,
    write_trace,
)
from labkit.verification.trace_names import Sizes, allowed_shapes, module_of, ordered_taps, tap_of_module
from labkit.verification.trace_record import Recorded
from labkit.verification.trace_sequence import TraceSequence


def test_a_written_trace_reads_back_bit_for_bit(clean: Recorded, save: Callable[..., Path]) -> None:
    with open_trace(save(clean.tensors, clean.metadata)) as trace:
        assert set(trace) == set(clean.tensors)
        assert all(torch.equal(trace[name], clean.tensors[name]) for name in trace)
        assert trace.metadata == clean.metadata
        assert trace.steps == (None, 0, 1)


def test_names_come_in_order_of_computation(clean: Recorded, save: Callable[..., Path]) -> None:
    with open_trace(save(clean.tensors, clean.metadata)) as trace:
        names = list(trace)
    first = [name for name in names if not name.startswith("step.")]
    assert first == ["input_ids", *(tap for tap in ordered_taps(clean.metadata.config) if tap in clean.tensors)]
    assert names[len(first)].startswith("step.0.")
    assert names[-1] == "step.1.logits"


def test_metadata_keeps_three_dtypes_apart() -> None:
    precision = Precision(compute=torch.bfloat16, accumulate=torch.float32, weight=torch.float16)
    config = TraceMetadata(engine="e", config=parse_metadata_config(), precision=precision, weights_sha256="ab")
    assert parse_metadata(config.fields()) == config


def parse_metadata_config() -> object:
    from labkit.config import GPT2Config

    return GPT2Config(n_layer=2, n_inner=64, layer_norm_epsilon=1e-6)


@pytest.mark.parametrize("key", WHAT_TO_WRITE)
def test_each_missing_key_is_named_with_what_to_write(clean: Recorded, tmp_path: Path, key: str) -> None:
    fields = clean.metadata.fields()
    del fields[key]
    save_safetensors(clean.tensors, tmp_path / "t.safetensors", metadata=fields, shared="copy")
    with pytest.raises(TraceError, match=f"'{key}' is missing; write ") as caught:
        open_trace(tmp_path / "t.safetensors")
    assert str(tmp_path / "t.safetensors") in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("format", "pt", "expected 'labkit-trace', got 'pt'"),
        ("version", "2", "expected '1', got '2'"),
        ("compute_dtype", "fp32", "one of float64, float32, bfloat16, float16"),
        ("config", "{", "not JSON"),
        ("config", "[]", "a JSON object"),
        ("config", '{"model_type": "llama"}', "model_type is not GPT-2's"),
        ("config", '{"n_head": 7}', "does not divide"),
    ],
)
def test_each_unusable_value_is_named(clean: Recorded, key: str, value: str, told: str) -> None:
    (problem,) = metadata_problems({**clean.metadata.fields(), key: value})
    assert f"'{key}'" in problem.what
    assert told in str(problem)


def test_a_config_as_transformers_writes_it_is_taken(checkpoint: Path, clean: Recorded) -> None:
    text = (checkpoint / "config.json").read_text()
    assert "transformers_version" in json.loads(text)
    assert parse_metadata({**clean.metadata.fields(), "config": text}).config == clean.metadata.config


def test_a_trace_without_ids_is_not_written(clean: Recorded, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="'input_ids' is missing"):
        write_trace(tmp_path / "t.safetensors", {"logits": torch.zeros(1)}, clean.metadata)


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        (torch.tensor([[1, 97]]), "beyond the vocabulary"),
        (torch.tensor([1, 2]), "not a batch of prompts"),
        (torch.tensor([[1.0, 2.0]]), "not whole numbers"),
        (torch.zeros(1, 40, dtype=torch.long), "longer than the model's context"),
    ],
)
def test_unusable_ids_are_named(clean: Recorded, save: Callable[..., Path], ids: torch.Tensor, told: str) -> None:
    path = save({"input_ids": ids}, clean.metadata)
    with open_trace(path) as trace, pytest.raises(TraceError, match=told):
        TraceSequence(trace)


@pytest.mark.parametrize(
    ("name", "tensor", "told"),
    [
        ("attention_mask", torch.ones(2, 5, dtype=torch.long), "the shape is wrong"),
        ("attention_mask", torch.full((2, 6), 2), "not a mask of 0"),
        ("position_ids", torch.full((2, 6), 32), "beyond wpe's table"),
        ("position_ids", torch.zeros(3, 6, dtype=torch.long), "the shape is wrong"),
        ("h.0.ln_1", torch.zeros(2, 6, 20, dtype=torch.long), "must be floating-point"),
        ("h.0.ln_1", torch.zeros(6, 2, 20), "transpose axes 0 and 1, to .batch, pos, n_embd."),
        ("h.0.attn.q", torch.zeros(2, 6, 20), r"reshape it to .2, 6, 5, 4., then permute its axes by .0, 2, 1, 3."),
        ("logits", torch.zeros(2, 97), "record the logits of every position"),
        ("logits", torch.zeros(2, 6, 96), "no transpose or reshape gives it"),
    ],
)
def test_unusable_tensors_are_named(
    clean: Recorded, save: Callable[..., Path], name: str, tensor: torch.Tensor, told: str
) -> None:
    prompt = {each: value for each, value in clean.tensors.items() if not each.startswith("step.")}
    with (
        open_trace(save({**prompt, name: tensor}, clean.metadata)) as trace,
        pytest.raises(TraceError, match=told) as caught,
    ):
        TraceSequence(trace)
    assert name in str(caught.value)


def test_steps_join_to_the_run_in_one_pass(checkpoint: Path, clean: Recorded, save: Callable[..., Path]) -> None:
    from labkit.load import load_gpt2

    with open_trace(save(clean.tensors, clean.metadata)) as trace:
        sequence = TraceSequence(trace)
        whole = load_gpt2(checkpoint).run(sequence.inputs.ids, taps="all").taps
        assert set(sequence) == set(whole)
        for name, value in whole.items():
            seen = sequence[name]
            assert seen.shape == value.shape, name
            if name.endswith(".attn.scores"):
                seen, value = seen.tril(), value.tril()
            assert torch.allclose(seen, value, atol=1e-4), name


def test_packed_and_merged_taps_stand_for_q_k_v_and_z(clean: Recorded, save: Callable[..., Path]) -> None:
    tensors = {n: t for n, t in clean.tensors.items() if not n.startswith("step.")}
    heads = [tensors.pop(f"h.1.attn.{letter}").transpose(1, 2).flatten(2) for letter in "qkv"]
    merged = tensors.pop("h.1.attn.z").transpose(1, 2).flatten(2)
    tensors |= {"h.1.attn.c_attn": torch.cat(heads, dim=-1), "h.1.attn.merged": merged}
    with open_trace(save(tensors, clean.metadata)) as trace:
        sequence = TraceSequence(trace)
        for letter in "qkvz":
            assert torch.equal(sequence[f"h.1.attn.{letter}"], clean.tensors[f"h.1.attn.{letter}"])


def test_every_module_maps_to_its_tap_and_back(clean: Recorded) -> None:
    for tap in ordered_taps(clean.metadata.config):
        module = module_of(tap)
        if module is not None and not module.endswith("c_attn"):
            assert tap_of_module(module) == tap
            assert tap_of_module(f"transformer.{module}") == tap


def test_keys_of_a_step_may_be_the_new_ones_or_all(clean: Recorded) -> None:
    config = replace(clean.metadata.config)
    assert allowed_shapes("h.0.attn.v", config, Sizes(batch=2, pos=1, past=6)) == ((2, 5, 1, 4), (2, 5, 7, 4))
    assert allowed_shapes("h.0.attn.v", config, Sizes(batch=2, pos=6)) == ((2, 5, 6, 4),)
