"""Attention viewer, sampler and stage ladder: views equal what the model gives, and errors show."""

from pathlib import Path

import pytest
import torch

from labkit.errors import ArgumentError, UnknownNameError
from labkit.generation.sampling import processed
from labkit.generation.settings import Settings
from labkit.load import load_gpt2
from labkit.model import GPT2
from labkit.verification import verify
from labkit.widgets import AttentionViewer, Sampler, StageLadder
from labkit.widgets.companions import tokenizer_of
from labkit.widgets.error_view import MOST_COLUMNS, MOST_ROWS, error_map
from labkit.widgets.sampler_view import SamplerSettings, distributions
from tests.oracles import random_checkpoint


@pytest.fixture(scope="module")
def model() -> GPT2:
    return load_gpt2()


def test_the_viewer_shows_the_models_pattern(model: GPT2) -> None:
    viewer = AttentionViewer(model, "It is a truth", block=2)
    ids = tokenizer_of(model).encode("It is a truth")
    pattern = model.run(ids, taps="h.2.attn.pattern").taps["h.2.attn.pattern"][0]
    for head, rows in enumerate(viewer.view["patterns"]):
        for query, row in enumerate(rows):
            assert len(row) == query + 1
            assert torch.allclose(torch.tensor(row) / 10_000, pattern[head, query, : query + 1], atol=1e-4)


def test_another_head_needs_no_new_view_another_block_does(model: GPT2) -> None:
    viewer = AttentionViewer(model, "It is a truth")
    sent: list[object] = []
    viewer.observe(lambda change: sent.append(change), names="view")
    viewer.set_state({"choice": {"prompt": "It is a truth", "block": 0, "head": 3}})
    assert sent == []
    viewer.set_state({"choice": {"prompt": "It is a truth", "block": 1, "head": 3}})
    assert len(sent) == 1
    assert "Block 1, head 3" in viewer.twin()


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"prompt": "", "block": 0, "head": 0}, "does not fit"),
        ({"prompt": "word " * 60, "block": 0, "head": 0}, "does not fit"),
        ({"prompt": "a", "block": 9, "head": 0}, "no such block"),
    ],
)
def test_what_cannot_be_viewed_is_said(model: GPT2, choice: dict[str, object], said: str) -> None:
    viewer = AttentionViewer(model, "It is")
    viewer.set_state({"choice": choice})
    assert said in viewer.error
    viewer.set_state({"choice": {"prompt": "It was", "block": 0, "head": 0}})
    assert viewer.error == ""


def test_a_checkpoint_without_a_tokenizer_needs_one(tmp_path: Path) -> None:
    random_checkpoint.write(tmp_path)
    with pytest.raises(ArgumentError, match="tokenizer"):
        AttentionViewer(load_gpt2(tmp_path))


@pytest.mark.parametrize(
    "settings",
    [
        SamplerSettings(temperature=0.7, top_k=12, top_p=0.9, min_p=0.0),
        SamplerSettings(temperature=1.5, top_k=0, top_p=1.0, min_p=0.1),
        SamplerSettings(temperature=1.0, top_k=1, top_p=0.5, min_p=1.0),
    ],
)
def test_the_last_distribution_is_generations_own(model: GPT2, settings: SamplerSettings) -> None:
    logits = model.run(tokenizer_of(model).encode("It is a"), logits="last").logits[0, -1]
    top_k = settings["top_k"] or None
    own = Settings(temperature=settings["temperature"], top_k=top_k, top_p=settings["top_p"], min_p=settings["min_p"])
    expected = processed(logits, [], own, new=0).double().softmax(-1)
    actual = distributions(logits, settings)[-1]
    assert torch.equal(actual > 0, expected > 0)
    assert torch.allclose(actual, expected, atol=1e-6)


def test_each_step_is_a_distribution_and_cuts_only(model: GPT2) -> None:
    logits = model.run(tokenizer_of(model).encode("It is a"), logits="last").logits[0, -1]
    steps = distributions(logits, SamplerSettings(temperature=0.9, top_k=40, top_p=0.8, min_p=0.05))
    kept = [int((step > 0).sum()) for step in steps]
    assert kept == sorted(kept, reverse=True)
    assert all(abs(float(step.sum()) - 1) < 1e-9 for step in steps)


def test_sliders_and_draws(model: GPT2) -> None:
    sampler = Sampler(model, "It is a")
    sampler.set_state({"choice": {**sampler.choice, "top_k": 1}})
    assert sampler.view["kept"][-1] == 1
    sampler.set_state({"draws": 1})
    likeliest = sampler.view["rows"][0]["id"]
    assert f"(id {likeliest})" in sampler.drawn
    sampler.set_state({"choice": {**sampler.choice, "temperature": 0}})
    assert "too low" in sampler.error
    sampler.set_state({"choice": {**sampler.choice, "temperature": 1, "prompt": ""}})
    assert "no tokens" in sampler.error
    assert "0, cut" in sampler.twin()


def test_the_ladder_starts_at_the_first_divergence_and_maps_its_error(model: GPT2) -> None:
    report = verify(prompts=["It is a truth"], plant="erf-gelu:1", tokens=0)
    name = "h.1.mlp.post"
    expected = model.run(report.prompts[0].ids, taps=["h.1.mlp.p*", "logits"]).taps
    actual = {**expected, name: torch.nn.functional.gelu(expected["h.1.mlp.pre"])}
    ladder = StageLadder(report, actual=actual, expected=expected)
    assert ladder.selected == name
    error = (actual[name].double() - expected[name].double()).abs()
    assert ladder.error_map["largest"] == float(error.max())
    assert error[tuple(ladder.error_map["worst"])] == error.max()
    ladder.set_state({"selected": "h.0.ln_1"})
    assert ladder.error_map == {}
    ladder.set_state({"selected": "logits"})
    assert ladder.error_map["largest"] == 0
    with pytest.raises(UnknownNameError, match=r"no stage named 'h\.0\.ln1'"):
        StageLadder(report, selected="h.0.ln1")


def test_a_big_stage_is_binned_and_its_worst_kept() -> None:
    expected = torch.zeros(2, 3, 100, 200)
    actual = expected.clone()
    actual[1, 2, 57, 131] = 1.0
    shown = error_map("h.0.attn.pattern", actual, expected)
    assert (shown["title"], shown["worst"]) == ("batch 1, head 2", [1, 2, 57, 131])
    assert len(shown["cells"]) <= MOST_ROWS
    assert len(shown["cells"][0]) <= MOST_COLUMNS
    row, column = 57 // shown["rows_per_cell"], 131 // shown["columns_per_cell"]
    assert shown["cells"][row][column] == 100
    assert sum(map(sum, shown["cells"])) == 100


def test_a_non_finite_error_is_the_largest() -> None:
    actual = torch.zeros(1, 2, 3)
    actual[0, 1, 1] = torch.nan
    shown = error_map("embed", actual, torch.zeros(1, 2, 3))
    assert shown["worst"] == [0, 1, 1]
    assert shown["cells"][1][1] == 100
