"""The forward pass against two oracles: transformers' float32 logits, and every stage of a NumPy float64 forward."""

import numpy as np
import pytest
import torch

from labkit.config import parse_config
from labkit.model import GPT2, tap_names
from tests.model.pairs import IDS, fields_of, pair, parameters_of
from tests.oracles import numpy_gpt2, random_checkpoint

CONFIGS = [
    {},
    {"n_inner": 20},
    {"layer_norm_epsilon": 0.1},
    {"scale_attn_weights": False},
    {"scale_attn_by_inverse_layer_idx": True},
    {"reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True},
    {"tie_word_embeddings": False},
    {"n_head": 1},
    {"n_head": 24},
    {"n_layer": 1},
    *({"activation_function": name} for name in ("gelu", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu")),
    *({"activation_function": name} for name in ("relu", "silu", "swish", "tanh", "gelu_python", "gelu_accurate")),
    {"activation_function": "gelu_python_tanh"},
]


@pytest.mark.parametrize("fields", CONFIGS, ids=str)
def test_logits_equal_transformers_for_every_config_field(fields: dict[str, object]) -> None:
    model, reference = pair(**fields)
    with torch.no_grad():
        expected = reference(torch.tensor(IDS)).logits  # [batch, pos, vocab]
    assert (model(IDS) - expected).abs().max() < 1e-4


@pytest.mark.parametrize("fields", CONFIGS, ids=str)
def test_every_stage_equals_the_numpy_forward_in_float64(fields: dict[str, object]) -> None:
    reference = random_checkpoint.build(**{**fields, "reorder_and_upcast_attn": False}).double()
    config = parse_config(reference.config.to_dict())
    parameters = parameters_of(reference, tied=config.tie_word_embeddings)
    run = GPT2(config, parameters).run(IDS, taps="all")
    expected = numpy_gpt2.stages({k: v.numpy() for k, v in parameters.items()}, fields_of(config), IDS)
    assert tuple(run.taps) == tap_names(config) == tuple(expected)
    for name, value in run.taps.items():
        assert value.shape == expected[name].shape, name
        np.testing.assert_allclose(value.numpy(), expected[name], rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize(
    "change",
    [
        {"n_head": 4},
        {"layer_norm_epsilon": 0.1},
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"activation_function": "gelu_new"},
    ],
    ids=str,
)
def test_a_config_field_read_wrongly_moves_the_logits(change: dict[str, object]) -> None:
    right, reference = pair(activation_function="relu")
    wrong = GPT2(parse_config({**reference.config.to_dict(), **change}), right.parameters_by_name)
    assert (wrong(IDS) - right(IDS)).abs().max() > 1e-2


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_every_dtype_computes_near_float64(dtype: torch.dtype) -> None:
    reference = random_checkpoint.build()
    config = parse_config(reference.config.to_dict())
    parameters = {name: each.to(dtype) for name, each in parameters_of(reference).items()}
    truth = GPT2(config, {name: each.double() for name, each in parameters.items()})(IDS)
    actual = GPT2(config, parameters)(IDS)
    assert actual.dtype == dtype
    scale = truth.abs().max()
    assert (actual.double() - truth).abs().max() <= 40 * torch.finfo(dtype).eps * scale


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_upcast_keeps_scores_in_float32(dtype: torch.dtype) -> None:
    reference = random_checkpoint.build(reorder_and_upcast_attn=True).to(dtype)
    model = GPT2(parse_config(reference.config.to_dict()), parameters_of(reference))
    run = model.run(IDS, taps=["h.0.attn.scores", "h.0.attn.pattern"])
    assert run.taps["h.0.attn.scores"].dtype == torch.float32
    assert run.taps["h.0.attn.pattern"].dtype == dtype
    with torch.no_grad():
        expected = reference(torch.tensor(IDS)).logits.float()
    bound = 20 * torch.finfo(dtype).eps * expected.abs().max()
    assert (model(IDS).float() - expected).abs().max() <= bound


def test_the_fused_road_gives_the_same_logits() -> None:
    for fields in ({}, {"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_weights": False}):
        eager, _ = pair(**fields)
        fused = GPT2(eager.config, eager.parameters_by_name, attention="sdpa")
        assert (fused(IDS) - eager(IDS)).abs().max() < 1e-5
        mask = [[0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 0]]
        real = torch.tensor(mask).bool()
        a, b = (model.run(IDS, attention_mask=mask).logits for model in (eager, fused))
        assert (a - b)[real].abs().max() < 1e-5


def test_the_last_position_alone() -> None:
    model, _ = pair()
    last = model.run(IDS, logits="last").logits  # [batch, 1, vocab]
    assert last.shape == (2, 1, 97)
    assert (last - model(IDS)[:, -1:]).abs().max() < 1e-5
