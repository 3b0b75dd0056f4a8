"""Random configs written by transformers, every parameter redrawn: logits, every tap, both memory modes, three dtypes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from labkit.load import load_gpt2
from labkit.verification import verify
from tests.model.pairs import fields_of
from tests.oracles import numpy_gpt2, random_checkpoint

SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed >= 4 else []) for seed in range(40)]


def draw_ids(seed: int, vocab_size: int, length: int) -> torch.Tensor:
    return torch.randint(vocab_size, (2, length), generator=torch.Generator().manual_seed(seed))  # [batch, pos]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_config_computes_as_transformers_and_numpy_do(seed: int, tmp_path: Path) -> None:
    fields = random_checkpoint.random_fields(seed)
    reference = random_checkpoint.write(tmp_path, seed=seed, **fields)
    ids = draw_ids(seed, fields["vocab_size"], 12)
    with torch.no_grad():
        expected = reference(ids).logits  # [batch, pos, vocab]
    mapped, owned = (load_gpt2(tmp_path, mode=mode) for mode in ("mapped", "owned"))
    run = mapped.run(ids, taps="all")
    assert (run.logits - expected).abs().max() < 1e-4
    assert torch.equal(owned(ids), run.logits)
    parameters = {name: each.double().numpy() for name, each in mapped.parameters_by_name.items()}
    truth = numpy_gpt2.stages(parameters, fields_of(mapped.config), ids.numpy())
    wide = load_gpt2(tmp_path, dtype=torch.float64).run(ids, taps="all")
    for name, value in wide.taps.items():
        np.testing.assert_allclose(value.numpy(), truth[name], rtol=1e-8, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.slow] if seed else []) for seed in range(40)])
def test_every_tap_of_a_random_config_is_within_budget(seed: int, dtype: str, tmp_path: Path) -> None:
    fields = random_checkpoint.random_fields(seed)
    random_checkpoint.write(tmp_path, seed=seed, **fields)
    ids = draw_ids(seed, fields["vocab_size"], 12)[:1]
    report = verify(tmp_path, ids=ids.tolist(), dtype=dtype, tokens=4)
    assert (report.verdict, report.first_divergence) == ("same", None)
