"""OpenAI's own GPT-2 small, wherever its folder is given: ``LABKIT_GPT2``, or models/gpt2 as ``labkit fetch`` makes it."""

import os
from pathlib import Path

import pytest
import torch
from transformers import GPT2LMHeadModel

from labkit.checkpoint.inventory import take_inventory
from labkit.hub.released import RELEASED_NBYTES, RELEASED_SHA256, sha256_of
from labkit.load import load_gpt2

HELLO_MY_NAME_IS = [[15496, 11, 616, 1438, 318]]


@pytest.fixture
def gpt2(root: Path) -> Path:
    folder = Path(os.environ.get("LABKIT_GPT2", root / "models" / "gpt2"))
    if not (folder / "model.safetensors").is_file():
        pytest.skip(
            "the released GPT-2 is not here: set LABKIT_GPT2 to its folder, or labkit fetch openai-community/gpt2"
        )
    return folder


def test_the_released_file_is_the_one_known(gpt2: Path) -> None:
    assert (gpt2 / "model.safetensors").stat().st_size == RELEASED_NBYTES
    assert sha256_of(gpt2 / "model.safetensors") == RELEASED_SHA256["model.safetensors"]
    inventory = take_inventory(gpt2)
    assert (inventory.problem, inventory.numel) == (None, 124_439_808)
    masks = next(each for each in inventory.extra if each.name == "causal mask")
    assert (masks.tensors, masks.nbytes) == (12, 12 * 4 * 1024 * 1024)


def test_its_logits_are_those_of_transformers(gpt2: Path) -> None:
    peer = GPT2LMHeadModel.from_pretrained(gpt2, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = peer(torch.tensor(HELLO_MY_NAME_IS)).logits[0, -1]  # [vocab]
    assert (load_gpt2(gpt2)(HELLO_MY_NAME_IS)[0, -1] - expected).abs().max() < 1e-3
