"""The inventory against the parameter formula, and the command that shows it."""

import json
from pathlib import Path

import pytest
import torch

from labkit.checkpoint import add_statistics, read_checkpoint
from labkit.checkpoint.inventory import take_inventory
from labkit.cli.main import run
from labkit.config import GPT2Config, parameter_shapes
from labkit.report.checkpoint import load_report_html, load_report_json
from labkit.storage import save_safetensors
from tests.checkpoint.test_read import edit_config, rewrite, tensors_of
from tests.oracles import random_checkpoint


def write_empty(folder: Path, config: GPT2Config) -> Path:
    """A snapshot of bfloat16 zeros: the sizes alone matter."""
    folder.mkdir(exist_ok=True)
    tensors = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in parameter_shapes(config).items()}
    save_safetensors(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **vars(config)}))
    return folder


def test_counts_by_kind_and_block_follow_the_formula(tmp_path: Path) -> None:
    random_checkpoint.write(tmp_path, n_inner=20, tie_word_embeddings=False)
    inventory = take_inventory(tmp_path)
    counts = {each.name: each.numel for each in inventory.by_kind}
    assert counts == {
        "token embedding": 97 * 24,
        "position embedding": 32 * 24,
        "attention": 3 * (4 * 24 * 24 + 4 * 24),
        "mlp": 3 * (2 * 24 * 20 + 20 + 24),
        "LayerNorm": 7 * 2 * 24,
        "head": 97 * 24,
    }
    assert inventory.numel == inventory.expected_numel == sum(counts.values())
    assert {each.numel for each in inventory.by_block} == {4 * 24 * 24 + 9 * 24 + 2 * 24 * 20 + 20}
    assert inventory.return_code == 0


@pytest.mark.parametrize(
    ("name", "sizes", "numel"),
    [
        ("gpt2", (12, 12, 768), 124_439_808),
        ("distilgpt2", (6, 12, 768), 81_912_576),
        ("gpt2-medium", (24, 16, 1024), 354_823_168),
        ("gpt2-large", (36, 20, 1280), 774_030_080),
        ("gpt2-xl", (48, 25, 1600), 1_557_611_200),
    ],
)
def test_the_family_by_config_alone(name: str, sizes: tuple[int, int, int], numel: int) -> None:
    n_layer, n_head, n_embd = sizes
    shapes = parameter_shapes(GPT2Config(n_layer=n_layer, n_head=n_head, n_embd=n_embd))
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == numel


@pytest.mark.parametrize("fields", [{"vocab_size": 5000, "n_positions": 2048}, {"vocab_size": 64, "n_positions": 4}])
def test_other_vocabularies_and_lengths_are_only_sizes(fields: dict[str, int], tmp_path: Path) -> None:
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, **fields)
    inventory = take_inventory(write_empty(tmp_path / "empty", config))
    assert (inventory.problem, inventory.numel) == (None, inventory.expected_numel)


def test_extra_tensors_are_explained_and_missing_ones_told(tmp_path: Path) -> None:
    random_checkpoint.write(tmp_path)
    tensors = tensors_of(tmp_path)
    tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 32, 32, dtype=torch.bool)
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone()
    tensors["score.weight"] = torch.zeros(2, 24)
    rewrite(tmp_path, tensors)
    inventory = take_inventory(tmp_path)
    assert {each.name: each.numel for each in inventory.extra} == {
        "causal mask": 1024,
        "copy of the tied head": 97 * 24,
        "other head": 48,
    }
    assert inventory.numel == inventory.expected_numel
    del tensors["transformer.h.1.mlp.c_fc.bias"]
    rewrite(tmp_path, tensors)
    inventory = take_inventory(tmp_path)
    assert inventory.return_code == 1
    assert "h.1.mlp.c_fc.bias" in str(inventory.problem)
    assert inventory.expected_numel - inventory.numel == 96


def test_the_command_shows_and_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random_checkpoint.write(tmp_path)
    assert run(["inventory", str(tmp_path), "--statistics"]) == 0
    shown = " ".join(capsys.readouterr().out.split())  # the terminal wraps it
    assert "24,816 parameters (as the formula says)" in shown
    assert run(["inventory", str(tmp_path), "--tensors", "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["numel"] == told["expected_numel"] == 24816
    assert len(told["load_report"]["tensors"]) == 40
    edit_config(tmp_path, n_layer=4)
    assert run(["inventory", str(tmp_path)]) == 1
    assert "This would not load" in capsys.readouterr().out
    assert run(["inventory", str(tmp_path / "nowhere")]) == 2


def test_names_from_a_file_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random_checkpoint.write(tmp_path)
    tensors = tensors_of(tmp_path)
    rewrite(tmp_path, {**tensors, "<script>\x1b[31m": torch.zeros(1)})
    assert run(["inventory", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    evil = tmp_path / "<b>&"
    tmp_path.rename(tmp_path.with_name("moved"))
    report = add_statistics(read_checkpoint(write_folder(evil.parent.with_name("other") / evil.name)).report)
    page = load_report_html(report)
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page
    assert load_report_json(report)["tensors"][0]["statistics"]["nonfinite"] == 0


def write_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    random_checkpoint.write(folder)
    return folder
