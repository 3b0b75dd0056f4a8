"""The tapped transformers: same logits, every tap, nothing left attached, and an independent float64 forward agrees."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from labkit.config import GPT2Config, parse_config
from labkit.errors import CheckpointError, MissingFileError
from labkit.model import tap_names
from labkit.verification.reference import build_reference, capture, load_reference, parameters_of
from tests.oracles import numpy_gpt2, random_checkpoint

IDS = [[5, 17, 3, 90, 42, 7, 11, 60]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("random")
    random_checkpoint.write(path, seed=3)
    return path


def test_tapped_logits_equal_untapped_bit_for_bit(folder: Path) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        model = load_reference(folder, dtype=dtype)
        with torch.inference_mode():
            plain = model(input_ids=torch.tensor(IDS)).logits  # [batch, pos, vocab]
        assert torch.equal(capture(model, torch.tensor(IDS))["logits"], plain)


def test_taps_come_in_the_order_of_computation(folder: Path) -> None:
    model = load_reference(folder)
    taps = capture(model, torch.tensor(IDS))
    assert tuple(taps) == tap_names(parse_config(model.config.to_dict()))
    assert list(taps["wpe"].shape) == [8, 24]
    assert list(taps["h.1.attn.q"].shape) == [1, 3, 8, 8]


def attached(model: Any) -> int:
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    names = [*AttentionInterface._global_mapping, *AttentionMaskInterface._global_mapping]
    return hooks + sum(name.startswith("labkit") for name in names)


def test_nothing_stays_attached_also_when_a_forward_raised(folder: Path) -> None:
    model = load_reference(folder)
    before = model.config._attn_implementation
    capture(model, torch.tensor(IDS))
    assert attached(model) == 0
    with pytest.raises(IndexError):
        capture(model, torch.tensor([[97]]))

    def refuse(name: str, _value: torch.Tensor) -> None:
        if name == "h.1.attn.scores":
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        capture(model, torch.tensor(IDS), record=refuse)
    assert attached(model) == 0
    assert model.config._attn_implementation == before


@pytest.mark.parametrize(
    "fields",
    [{}, {"n_head": 1}, {"activation_function": "gelu", "n_inner": 20}, {"scale_attn_by_inverse_layer_idx": True}],
    ids=str,
)
def test_truth_equals_the_numpy_forward(fields: dict[str, Any]) -> None:
    random = random_checkpoint.build(**fields)
    weights = parameters_of(random)
    truth = capture(build_reference(random.config.to_dict(), weights), torch.tensor(IDS))
    config = parse_config(random.config.to_dict())
    names = {name: getattr(config, name) for name in GPT2Config.__dataclass_fields__}
    expected = numpy_gpt2.stages({k: v.double().numpy() for k, v in weights.items()}, names, IDS)
    for name, value in truth.items():
        np.testing.assert_allclose(value.numpy(), expected[name], rtol=1e-9, atol=1e-11, err_msg=name)


def test_upcasting_flag_does_not_stop_the_float64_truth(folder: Path, tmp_path: Path) -> None:
    random_checkpoint.write(tmp_path, seed=3, reorder_and_upcast_attn=True)
    plain, upcast = (capture(load_reference(each), torch.tensor(IDS)) for each in (folder, tmp_path))
    assert torch.equal(plain["logits"], upcast["logits"])
    untapped = load_reference(tmp_path)(input_ids=torch.tensor(IDS), use_cache=False).logits
    assert torch.equal(untapped, plain["logits"])


def test_missing_tensors_and_files_are_named(folder: Path, tmp_path: Path) -> None:
    model = load_reference(folder)
    weights = parameters_of(model)
    del weights["h.1.ln_2.bias"]
    with pytest.raises(CheckpointError, match=r"h\.1\.ln_2\.bias"):
        build_reference(model.config.to_dict(), weights)
    with pytest.raises(MissingFileError, match=r"neither model\.safetensors"):
        load_reference(tmp_path)


def test_models_built_in_many_threads_leave_transformers_as_it_was(folder: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: load_reference(folder, dtype=torch.float32), range(24)))
    fresh = random_checkpoint.build()
    assert fresh.lm_head.weight is fresh.transformer.wte.weight
    assert float(fresh.transformer.h[0].mlp.c_fc.weight.detach().abs().max()) > 0
