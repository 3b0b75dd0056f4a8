"""Processed logits against transformers' processors; draws against their probabilities."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from labkit.errors import ArgumentError
from labkit.generation import generate, stream
from labkit.generation.sampling import draw, keep_top_k, keep_top_p, penalize_repetition, processed
from labkit.generation.settings import Settings
from labkit.model import GPT2

VOCAB = 50


def reference(logits: torch.Tensor, seen: list[int], settings: Settings, new: int) -> torch.Tensor:
    """The same through transformers' processors, in the order in which its generate() puts them."""
    steps: list[Any] = []
    if settings.repetition_penalty != 1.0:
        steps.append(RepetitionPenaltyLogitsProcessor(penalty=settings.repetition_penalty))
    if settings.min_tokens and settings.stop_ids:
        prompt = len(seen) - new
        steps.append(MinNewTokensLengthLogitsProcessor(prompt, settings.min_tokens, list(settings.stop_ids)))
    if settings.sampled:
        steps.append(TemperatureLogitsWarper(settings.temperature))
        if settings.top_k is not None:
            steps.append(TopKLogitsWarper(settings.top_k))
        if settings.top_p is not None and settings.top_p < 1:
            steps.append(TopPLogitsWarper(settings.top_p))
        if settings.min_p is not None:
            steps.append(MinPLogitsWarper(settings.min_p))
    return LogitsProcessorList(steps)(torch.tensor([seen]), logits[None].float())[0]


@given(
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.0, 2.5]),
    top_k=st.sampled_from([None, 1, 7, 49, 500]),
    top_p=st.sampled_from([None, 0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([None, 0.0, 0.02, 0.3, 1.0]),
    penalty=st.sampled_from([1.0, 0.5, 1.3, 4.0]),
    new=st.integers(0, 4),
    min_tokens=st.integers(0, 4),
    ties=st.booleans(),
)
def test_processed_equals_transformers(
    seed: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    penalty: float,
    new: int,
    min_tokens: int,
    ties: bool,  # noqa: FBT001
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(VOCAB, generator=generator)
    if ties:
        logits = logits.round()
    seen = torch.randint(VOCAB, (new + 5,), generator=generator).tolist()
    settings = Settings(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=penalty,
        min_tokens=min_tokens,
        stop_ids=(3, 4),
    )
    actual = processed(logits, seen, settings, new=new)
    expected = reference(logits, seen, settings, new)
    assert torch.equal(actual, expected)


def test_half_precision_logits_are_processed_in_float32() -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1)).bfloat16()
    settings = Settings(temperature=0.7, top_p=0.8)
    assert processed(logits, [1], settings, new=0).dtype == torch.float32
    assert torch.equal(processed(logits, [1], settings, new=0), reference(logits, [1], settings, 0))


def test_the_comparison_would_see_an_order_of_cuts_exchanged() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    settings = Settings(temperature=1.0, top_k=2, top_p=0.5)
    swapped = keep_top_k(keep_top_p(logits, 0.5), 2)
    assert not torch.equal(swapped, reference(logits, [0], settings, 0))


def chi_square(counts: torch.Tensor, probabilities: torch.Tensor) -> tuple[float, int]:
    """The statistic over ids expected at least five times, and its degrees of freedom."""
    expected = probabilities.double() * counts.sum()
    often = expected >= 5
    observed = torch.cat([counts[often].double(), counts[~often].sum()[None].double()])
    theory = torch.cat([expected[often], expected[~often].sum()[None]])
    present = theory > 0
    assert not observed[~present].any()
    return float(((observed - theory)[present] ** 2 / theory[present]).sum()), int(present.sum()) - 1


@pytest.mark.parametrize("settings", [Settings(temperature=1.0), Settings(temperature=0.7, top_k=12, top_p=0.9)])
def test_draws_follow_the_probabilities(settings: Settings) -> None:
    logits = 2 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(5))
    row = processed(logits, [0], settings, new=0)
    generator = torch.Generator().manual_seed(11)
    draws = torch.tensor([draw(row, generator) for _ in range(8000)])
    counts = torch.bincount(draws, minlength=VOCAB)
    statistic, freedom = chi_square(counts, row.softmax(-1))
    # Wilson and Hilferty: chi-square over its degrees, to the third power, is nearly normal; 4 spreads are allowed
    normal = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert normal < 4
    hotter = processed(logits, [0], Settings(temperature=settings.temperature * 1.2), new=0)
    fault, freedom = chi_square(counts, torch.where(row.isinf(), 0, hotter.softmax(-1)))
    assert ((fault / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom)) > 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forbidding_every_id_is_refused_before_the_first_pass(random_model: GPT2, temperature: float) -> None:
    everything = list(range(257))
    with pytest.raises(ArgumentError, match=r"stop_ids: every id is a stop id.*got all 257 ids, min_tokens 2"):
        stream(random_model, [1], temperature=temperature, stop_ids=everything, min_tokens=2)
    assert len(generate(random_model, [1], temperature=temperature, stop_ids=everything).ids) == 1
    spared = generate(
        random_model, [1], temperature=temperature, stop_ids=everything[:9] + everything[10:], min_tokens=3
    )
    assert spared.ids[:2] == (9, 9)


def test_a_penalty_that_overflows_leaves_something_to_draw() -> None:
    row = penalize_repetition(torch.tensor([3e38, -3e38, 1.0]), [0, 1], 1e-6)
    assert row.isfinite().all()
    assert penalize_repetition(torch.tensor([3e38, -3e38, 1.0]), [0, 1], 1e6).isfinite().all()
