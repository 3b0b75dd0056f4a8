"""At GPT-2 small's real size: greedy ids beside transformers' on 20 prompts and three dtypes, and look-up decoding."""

from pathlib import Path

import pytest
import torch
from transformers import GPT2LMHeadModel

from labkit.generation import greedy
from labkit.generation.continuation import Continuation
from labkit.generation.decoder import FastDecoder
from labkit.generation.lookup import Lookup
from labkit.generation.settings import Settings
from labkit.load import load_gpt2
from tests.generation.test_decoder import worst
from tests.generation.test_greedy import reference_run
from tests.oracles.random_checkpoint import build

pytestmark = pytest.mark.slow

PROMPTS = [
    torch.randint(50257, (4 + seed % 9,), generator=torch.Generator().manual_seed(seed)).tolist() for seed in range(20)
]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOKENS = 20


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    model = build(
        seed=2,
        vocab_size=50257,
        n_positions=1024,
        n_embd=768,
        n_layer=12,
        n_head=12,
        bos_token_id=50256,
        eos_token_id=50256,
    )
    with torch.no_grad():
        model.transformer.wpe.weight *= 6
        for name, parameter in model.named_parameters():
            if ".h." in name and parameter.dim() == 2:  # as large a product as at the small models' width of 24:
                parameter *= (24 / 768) ** 0.5  # otherwise attention is a choice of one key, and rounding is amplified
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_greedy_ids_equal_transformers_wherever_certified(small: Path, dtype: torch.dtype) -> None:
    model = load_gpt2(small, dtype=dtype)
    reference = GPT2LMHeadModel.from_pretrained(small, dtype=dtype).eval()
    certified = 0
    for prompt in PROMPTS:
        expected, logits = reference_run(reference, prompt, TOKENS)
        assert len(set(expected)) >= 10
        for actual, theirs, row in zip(greedy(model, prompt, TOKENS), expected, logits, strict=True):
            first, second = row.topk(2).values.tolist()
            if actual != theirs:
                assert first - second <= 4 * torch.finfo(dtype).eps * row.abs().max()
                break
            certified += 1
    total = TOKENS * len(PROMPTS)
    assert certified == total if dtype == torch.float32 else certified >= total / 2


def test_steps_are_as_exact_as_the_readable_model_far_into_the_window(small: Path) -> None:
    """Weights this large amplify float32's rounding, so both are held to float64."""
    model, exact = load_gpt2(small), load_gpt2(small, dtype=torch.float64)
    ids = torch.randint(50257, (500,), generator=torch.Generator().manual_seed(0)).tolist()
    fast = FastDecoder(model)
    fast.prefill([ids[:-1]])
    truth = exact.run(ids, logits="last").logits[:, -1]
    ours, plain = fast.step(torch.tensor(ids[-1:])), model.run(ids, logits="last").logits[:, -1]
    assert worst(ours, truth) < 3 * worst(plain, truth) < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_look_up_decoding_gives_the_same_ids(small: Path, dtype: torch.dtype) -> None:
    model = load_gpt2(small, dtype=dtype)
    for prompt in (PROMPTS[0] * 3, PROMPTS[1][:2] * 6):
        run = Continuation(model, [prompt], Settings(tokens=20), lookup=True)
        assert isinstance(run.source, Lookup)
        run.source._learn = lambda **_: None  # type: ignore[method-assign]
        while run.advance():
            pass
        assert run.rows[0][len(prompt) :] == greedy(model, prompt, 20)
