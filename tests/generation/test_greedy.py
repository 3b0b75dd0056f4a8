"""Greedy ids against transformers' generate, and what cannot be continued."""

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import GPT2LMHeadModel

from labkit.errors import ArgumentError, OutOfRangeError
from labkit.generation import greedy
from labkit.load import load_gpt2
from labkit.model import GPT2, Operations
from labkit.model.operations import conv1d
from tests.oracles.random_checkpoint import write


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[GPT2, GPT2LMHeadModel]:
    folder = tmp_path_factory.mktemp("random")
    reference = write(folder, seed=3, std=0.3, tie_word_embeddings=False)
    return load_gpt2(folder), reference


@pytest.mark.parametrize("seed", range(5))
def test_ids_equal_transformers(pair: tuple[GPT2, GPT2LMHeadModel], seed: int) -> None:
    model, reference = pair
    prompt = torch.randint(97, (4 + seed,), generator=torch.Generator().manual_seed(seed)).tolist()
    expected = reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=20,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0, len(prompt) :].tolist()
    assert greedy(model, prompt, 20) == expected
    assert len(set(expected)) >= 10


@pytest.mark.parametrize(
    "faulty",
    [
        dataclasses.replace(Operations(), attn_c_proj=lambda x, weight, bias: conv1d(x, weight.T, bias)),
        dataclasses.replace(Operations(), pattern=lambda scores, visible: (scores / 9).softmax(-1)),
    ],
    ids=["transpose-c_proj", "no-mask"],
)
def test_a_planted_fault_is_run_as_it_is(pair: tuple[GPT2, GPT2LMHeadModel], faulty: Operations) -> None:
    model, _ = pair
    planted = GPT2(model.config, model.parameters_by_name, block_operations={1: faulty})
    ids, expected = [3, 1, 4, 1, 5], []
    for _ in range(12):
        expected.append(int(planted([*ids, *expected])[0, -1].argmax()))
    assert greedy(planted, ids, 12) == expected
    assert greedy(model, ids, 12) != expected


def test_n_positions_is_never_passed(pair: tuple[GPT2, GPT2LMHeadModel]) -> None:
    model, _ = pair
    assert len(greedy(model, [1] * 32, 1)) == 1
    assert len(greedy(model, [1] * 20, 13)) == 13
    with pytest.raises(OutOfRangeError, match=r"20 tokens leaves no room for 14 more \(expected at most 13"):
        greedy(model, [1] * 20, 14)
    with pytest.raises(OutOfRangeError, match=r"longer than the model's positions .*n_positions = 32"):
        greedy(model, [1] * 33, 1)


def test_unusable_prompts(pair: tuple[GPT2, GPT2LMHeadModel]) -> None:
    model, _ = pair
    with pytest.raises(ArgumentError, match="no tokens"):
        greedy(model, [], 3)
    with pytest.raises(OutOfRangeError, match=r"position 1: the id is beyond .*0 to 96, got 97"):
        greedy(model, [1, 97], 3)


def test_importing_the_room_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, labkit.generation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent).returncode == 0
