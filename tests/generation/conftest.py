"""Small checkpoints for the generation tests, written by transformers, with a byte tokenizer beside them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from labkit.load import load_gpt2
from labkit.model import GPT2
from labkit.tokenizer import SYMBOL_OF_BYTE
from tests.oracles.random_checkpoint import build

TEXT = "日本語のテキスト、año €5, ünïcödé 🙂👩‍👩‍👧 текст ελληνικά ไทย עברית العربية 한국어 中文字符 ₿∞≈ " * 2
"""What the forced checkpoint says: over 200 bytes, most of them parts of characters."""


def write_byte_tokenizer(folder: Path) -> None:
    """A vocabulary of the 256 bytes and an end-of-text token, id 256, without a merge."""
    vocab = {symbol: byte for byte, symbol in enumerate(SYMBOL_OF_BYTE)}
    (folder / "vocab.json").write_text(
        json.dumps({**vocab, "<|endoftext|>": 256}, ensure_ascii=False), encoding="utf-8"
    )
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """One torch thread: models this small gain nothing from more, and two that wait for each other take long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def random_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random parameters, 257 ids, untied head, 64 positions that weigh enough for texts of many different ids."""
    folder = tmp_path_factory.mktemp("bytes")
    model = build(seed=1, tie_word_embeddings=False, vocab_size=257, n_positions=64, bos_token_id=256, eos_token_id=256)
    with torch.no_grad():
        model.transformer.wpe.weight *= 6
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def random_model(random_folder: Path) -> GPT2:
    return load_gpt2(random_folder)


@pytest.fixture(scope="session")
def reference(random_folder: Path) -> GPT2LMHeadModel:
    return GPT2LMHeadModel.from_pretrained(random_folder).eval()


@pytest.fixture(scope="session")
def forced_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that says ``TEXT`` byte by byte whatever it is asked: each position's embedding names the next byte."""
    folder = tmp_path_factory.mktemp("forced")
    data = TEXT.encode()[:255]
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=257,
            n_positions=256,
            n_embd=288,
            n_layer=1,
            n_head=2,
            tie_word_embeddings=False,
            bos_token_id=256,
            eos_token_id=256,
        )
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
        centred = torch.randn(288, 288)
        centred -= centred.mean(1, keepdim=True)  # [n_embd, n_embd]: a norm takes the mean away
        places = torch.linalg.qr(centred[:256].T).Q.T  # [pos, n_embd], orthonormal
        model.transformer.wpe.weight.copy_(places)
        for place, byte in enumerate(data):
            model.lm_head.weight[byte] += places[place]
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder
