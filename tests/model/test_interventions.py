"""Interventions: each does to the run what it says, and nothing else."""

import pytest
import torch

from labkit.errors import ArgumentError, OutOfRangeError
from labkit.model import GPT2, ablate_heads, logit_lens, patch_positions
from tests.model.pairs import IDS, pair


@pytest.fixture(scope="module")
def model() -> GPT2:
    return pair()[0]


def test_a_head_set_to_zero_is_a_head_whose_rows_of_c_proj_are_zero(model: GPT2) -> None:
    dim = model.config.head_dim
    weight = model.parameters_by_name["h.1.attn.c_proj.weight"].clone()  # [in, out]
    weight[2 * dim : 3 * dim] = 0
    without = GPT2(model.config, {**model.parameters_by_name, "h.1.attn.c_proj.weight": weight})
    ablated = model.run(IDS, replace={"h.1.attn.z": ablate_heads([2])}).logits
    assert (ablated - without(IDS)).abs().max() < 1e-5
    assert (ablated - model(IDS)).abs().max() > 1e-2


def test_a_head_set_to_its_mean_keeps_the_mean_and_loses_the_rest(model: GPT2) -> None:
    clean = model.run(IDS, taps="h.1.attn.z").taps["h.1.attn.z"]  # [batch, head, pos, head_dim]
    z = model.run(IDS, taps="h.1.attn.z", replace={"h.1.attn.z": ablate_heads([0, 2], by="mean")}).taps["h.1.attn.z"]
    assert torch.equal(z[:, 1], clean[:, 1])
    assert (z[:, 2] - clean[:, 2].mean(dim=(0, 1))).abs().max() < 1e-6
    assert z[:, 0].std(dim=1).max() < 1e-6


def test_patching_every_position_of_the_last_stream_carries_the_output_over(model: GPT2) -> None:
    one, other = [IDS[0]], [IDS[1]]
    last = f"h.{model.config.n_layer - 1}.resid_post"
    source = model.run(one, taps=last).taps[last]
    patched = model.run(other, replace={last: patch_positions(source, range(8))}).logits
    assert torch.equal(patched, model(one))


def test_patching_one_position_reaches_only_what_comes_after(model: GPT2) -> None:
    one, other = [IDS[0]], [IDS[1]]
    source = model.run(one, taps="h.0.resid_post").taps["h.0.resid_post"]
    patched = model.run(other, replace={"h.0.resid_post": patch_positions(source, [4])}).logits
    moved = (patched - model(other)).abs().amax(dim=-1)[0]  # [pos]
    assert moved[:4].max() == 0
    assert moved[4:].min() > 1e-2


def test_the_lens_ends_in_the_models_own_logits(model: GPT2) -> None:
    lens = logit_lens(model, IDS)
    assert list(lens) == ["embed", *(f"h.{i}.resid_post" for i in range(model.config.n_layer))]
    assert torch.equal(lens[f"h.{model.config.n_layer - 1}.resid_post"], model(IDS))
    assert (lens["h.0.resid_post"] - model(IDS)).abs().max() > 1e-2
    assert not any(each.requires_grad for each in lens.values())


def test_heads_and_positions_that_are_not_there_are_refused(model: GPT2) -> None:
    with pytest.raises(OutOfRangeError, match=r"there is no such head \(expected 0 to 2, got 3\)"):
        model.run(IDS, replace={"h.0.attn.z": ablate_heads([3])})
    with pytest.raises(OutOfRangeError, match=r"there is no such position \(expected 0 to 7, got 8\)"):
        model.run(IDS, replace={"embed": patch_positions(torch.zeros(1, 9, 24), [8])})
    with pytest.raises(ArgumentError, match="by: no such ablation"):
        ablate_heads([0], by="noise")  # type: ignore[arg-type]
