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

PROMPTS = [
    torch.randint(257, (4 + seed % 5,), generator=torch.Generator().manual_seed(seed)).tolist() for seed in range(20)
]


def reference_run(
    reference: GPT2LMHeadModel, prompt: list[int], count: int = 20
) -> tuple[list[int], list[torch.Tensor]]:
    """transformers' greedy ids, and the logits [vocab] that it chose each from."""
    result = reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return result.sequences[0, len(prompt) :].tolist(), [each[0].float() for each in result.logits]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_ids_equal_transformers_wherever_the_margin_is_certified(random_folder: Path, dtype: torch.dtype) -> None:
    model = load_gpt2(random_folder, dtype=dtype)
    reference = GPT2LMHeadModel.from_pretrained(random_folder, dtype=dtype).eval()
    certified = 0
    for prompt in PROMPTS:
        expected, logits = reference_run(reference, prompt)
        assert len(set(expected)) >= 10
        for step, (actual, theirs, row) in enumerate(zip(greedy(model, prompt, 20), expected, logits, strict=True)):
            first, second = row.topk(2).values.tolist()
            if actual != theirs:
                assert first - second <= 4 * torch.finfo(dtype).eps * row.abs().max(), f"{prompt}, step {step}"
                break
            certified += 1
    assert certified == 400 if dtype == torch.float32 else certified >= 200


@pytest.mark.parametrize(
    "faulty",
    [
        dataclasses.replace(Operations(), attn_c_proj=lambda x, weight, bias: conv1d(x, weight.T, bias)),
        dataclasses.replace(Operations(), pattern=lambda scores, visible: (scores / 9).softmax(-1)),
    ],
    ids=["transpose-c_proj", "no-mask"],
)
def test_a_planted_fault_is_run_as_it_is(random_model: GPT2, faulty: Operations) -> None:
    planted = GPT2(random_model.config, random_model.parameters_by_name, block_operations={1: faulty})
    ids, expected = [3, 1, 4, 1, 5], []
    for _ in range(12):
        expected.append(int(planted([*ids, *expected])[0, -1].argmax()))
    assert greedy(planted, ids, 12) == expected
    assert greedy(random_model, ids, 12) != expected


def test_n_positions_is_never_passed(random_model: GPT2) -> None:
    assert len(greedy(random_model, [1] * 64, 1)) == 1
    assert len(greedy(random_model, [1] * 52, 13)) == 13
    with pytest.raises(OutOfRangeError, match=r"52 tokens leaves no room for 14 more \(expected at most 13"):
        greedy(random_model, [1] * 52, 14)
    with pytest.raises(OutOfRangeError, match=r"longer than the model's positions .*n_positions = 64"):
        greedy(random_model, [1] * 65, 1)


def test_unusable_prompts(random_model: GPT2) -> None:
    with pytest.raises(ArgumentError, match="no tokens"):
        greedy(random_model, [], 3)
    with pytest.raises(OutOfRangeError, match=r"position 1: the id is beyond .*0 to 256, got 257"):
        greedy(random_model, [1, 257], 3)


def test_importing_the_room_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, labkit.generation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent).returncode == 0
