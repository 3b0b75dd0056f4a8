"""Look-up decoding gives plain greedy's ids: over many prompts, where leads are within rounding, and past the window."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import ArgumentError
from labkit.generation import generate, greedy, lookup
from labkit.generation.continuation import Continuation
from labkit.generation.decoder import FastDecoder
from labkit.generation.lookup import Lookup, NgramIndex
from labkit.generation.settings import Settings
from labkit.load import load_gpt2
from labkit.model import GPT2
from tests.oracles.random_checkpoint import write

REPEATING = [[1, 2, 3, 4] * 4, [7, 7, 7, 7, 7, 7], [5, 9, 5, 9, 5, 9, 5], list(range(10, 22)) * 2]


def by_lookup(model: GPT2, ids: Sequence[int], count: int) -> tuple[list[int], Lookup]:
    """Greedy ids through drafts, and the source with its counts; every draft is tried, whether or not it pays."""
    run = Continuation(model, [list(ids)], Settings(tokens=count), lookup=True)
    assert isinstance(run.source, Lookup)
    run.source._learn = lambda **_: None  # type: ignore[method-assign]
    while run.advance():
        pass
    return run.rows[0][len(ids) :], run.source


@pytest.fixture(scope="module")
def loop_model(tmp_path_factory: pytest.TempPathFactory) -> GPT2:
    """A random model whose greedy text soon repeats itself."""
    folder = tmp_path_factory.mktemp("loop")
    write(folder, seed=5, std=0.3, vocab_size=60, n_positions=96)
    return load_gpt2(folder)


@pytest.mark.parametrize("number", range(24))
def test_ids_equal_plain_greedy(loop_model: GPT2, random_model: GPT2, number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    prompt = (
        REPEATING[number] if number < len(REPEATING) else torch.randint(60, (3 + number,), generator=generator).tolist()
    )
    ids, source = by_lookup(loop_model, prompt, 60)
    assert ids == greedy(loop_model, prompt, 60)
    assert source.kept > 0
    assert by_lookup(random_model, prompt, 30)[0] == greedy(random_model, prompt, 30)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("prompt", REPEATING)
def test_ids_equal_in_half_precision(random_folder: Path, dtype: torch.dtype, prompt: list[int]) -> None:
    model = load_gpt2(random_folder, dtype=dtype)
    assert by_lookup(model, prompt, 36)[0] == greedy(model, prompt, 36)


class Shaken(FastDecoder):
    """A decoder whose passes over several ids are off by a little less than what is allowed for rounding."""

    def extend(self, ids: torch.Tensor) -> torch.Tensor:
        logits = super().extend(ids)
        size = 0.4 * 64 * torch.finfo(logits.dtype).eps * logits.abs().amax(-1, keepdim=True)
        return logits + size * torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)).sign()


@pytest.fixture
def near_ties(loop_model: GPT2) -> GPT2:
    """Every id has a twin whose logit lies within rounding of its own."""
    parameters = dict(loop_model.parameters_by_name)
    table = parameters["wte.weight"].clone()
    table[30:] = table[:30] * (1 + 2e-6)
    return GPT2(loop_model.config, {**parameters, "wte.weight": table})


def test_ties_within_rounding_are_decided_by_single_steps(near_ties: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.generation.continuation.FastDecoder", Shaken)
    for prompt in REPEATING[1:3]:
        ids, source = by_lookup(near_ties, prompt, 50)
        assert ids == greedy(near_ties, prompt, 50)
        assert source.redone > 0


def test_without_the_single_steps_ids_would_part(near_ties: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.generation.continuation.FastDecoder", Shaken)
    monkeypatch.setattr(Lookup, "_certain", lambda _, logits: [True] * len(logits))
    assert any(by_lookup(near_ties, prompt, 50)[0] != greedy(near_ties, prompt, 50) for prompt in REPEATING[1:3])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_allowance_covers_what_several_rows_round_differently(dtype: torch.dtype) -> None:
    """Two logits may each be off, so the allowance for a lead must be twice the largest difference at least."""
    model = load_gpt2(dtype=dtype)
    used = []
    for seed in range(6):
        ids = torch.randint(model.config.vocab_size, (60,), generator=torch.Generator().manual_seed(seed)).tolist()
        several, single = FastDecoder(model), FastDecoder(model)
        several.prefill([ids[:20]])
        single.prefill([ids[:20]])
        together = torch.cat([several.extend(torch.tensor([ids[at : at + 8]]))[0] for at in range(20, 60, 8)]).double()
        alone = torch.cat([single.step(torch.tensor([token])) for token in ids[20:]]).double()
        off = (together - alone).abs().amax(-1) / alone.abs().amax(-1)  # [pos]
        least = lookup.LEAST_ROUNDING[dtype] * torch.finfo(dtype).eps
        used.append(2 * float(off.max()) / max(least, lookup.SAFETY * float(off[0])))
    assert max(used) < 0.75


def test_a_model_that_amplifies_rounding_is_noticed(tmp_path: Path) -> None:
    """Large weights make attention a near choice of one key, where rounding weighs a thousand times more."""
    write(tmp_path, seed=2, std=0.9, n_embd=96, n_layer=8, n_head=8, n_positions=96, tie_word_embeddings=False)
    model = load_gpt2(tmp_path)
    for prompt in REPEATING:
        ids, source = by_lookup(model, prompt, 60)
        assert ids == greedy(model, prompt, 60)
    assert source._noise > 64 * torch.finfo(torch.float32).eps / lookup.SAFETY


def test_the_window_slides_under_lookup_as_well(loop_model: GPT2) -> None:
    plain = generate(loop_model, REPEATING[0], tokens=150, window="slide", stop_ids=[])
    looked = generate(loop_model, REPEATING[0], tokens=150, window="slide", lookup=True, stop_ids=[])
    assert looked.ids == plain.ids
    assert looked.notes[:-1] == plain.notes != ()
    assert looked.notes[-1].startswith("look-up: ")


def test_stop_ids_end_the_text_in_the_middle_of_a_draft(loop_model: GPT2) -> None:
    plain = generate(loop_model, REPEATING[0], tokens=40, stop_ids=[])
    stop = plain.ids[25]
    expected = generate(loop_model, REPEATING[0], tokens=40, stop_ids=stop)
    assert generate(loop_model, REPEATING[0], tokens=40, stop_ids=stop, lookup=True).ids == expected.ids


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 9))
def test_a_draft_is_what_followed_before(ids: list[int], count: int) -> None:
    index = NgramIndex()
    index.extend(ids)
    draft = index.draft(count)
    earlier = {
        tuple(ids[end - n : end]) for n in lookup.NGRAMS for end in range(n, len(ids)) if ids[end - n : end] == ids[-n:]
    }
    assert bool(draft) == bool(earlier)
    assert len(draft) in (0, count)
    if draft:
        longest = max(map(len, earlier))
        places = [end for end in range(longest, len(ids)) if tuple(ids[end - longest : end]) == tuple(ids[-longest:])]
        assert draft[0] == ids[places[-1]]


def test_what_lookup_cannot_go_with(random_model: GPT2) -> None:
    for options in ({"temperature": 1.0}, {"cache": False}, {"repetition_penalty": 1.2}):
        with pytest.raises(ArgumentError, match="look-up decoding goes on with one prompt, greedily"):
            generate(random_model, [1, 2], lookup=True, **options)


def test_a_vocabulary_of_one_id(tmp_path: Path) -> None:
    write(tmp_path, vocab_size=1)
    model = load_gpt2(tmp_path)
    assert generate(model, [0, 0], tokens=20, stop_ids=[], lookup=True).ids == (0,) * 20
    assert by_lookup(model, [0, 0, 0], 20)[0] == [0] * 20
