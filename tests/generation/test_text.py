"""Streams: whole characters, stop strings and ids, batches, breaks, seeds, the window, logits that are not finite."""

import itertools
import random
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from labkit.errors import ArgumentError, ArgumentTypeError, NonFiniteError, OutOfRangeError, UnknownNameError
from labkit.generation import generate, generate_batch, stream, stream_batch
from labkit.generation.decoder import FastDecoder
from labkit.generation.text import TextFeed
from labkit.generation.verbs import Options
from labkit.load import load_gpt2
from labkit.model import GPT2
from labkit.tokenizer import Tokenizer
from tests.generation.conftest import TEXT
from tests.oracles.random_checkpoint import write

NEVER = [256]
"""A stop id that the tests' models do not say before their time."""


def test_two_hundred_tokens_of_many_bytes_never_show_a_broken_character(forced_folder: Path) -> None:
    run = stream(load_gpt2(forced_folder), "A", tokens=240, stop_ids=NEVER)
    chunks = [token.text for token in run]
    assert len(chunks) == 240
    assert not any("\ufffd" in chunk for chunk in chunks[:-1])
    assert chunks.count("") > 100  # most tokens are parts of characters
    whole = run.result().text
    assert whole is not None
    assert "".join(chunks) == whole
    assert TEXT.startswith(whole.rstrip("\ufffd"))


@lru_cache
def gpt2() -> Tokenizer:
    return Tokenizer.gpt2()


@given(text=st.text(min_size=1, max_size=40), stop=st.lists(st.text(min_size=1, max_size=4), max_size=3))
def test_the_feed_gives_the_text_before_the_first_stop(text: str, stop: list[str]) -> None:
    tokenizer = gpt2()
    ids = tokenizer.encode(text)
    feed = TextFeed(tokenizer, stop=stop)
    shown = ""
    for token in ids:
        shown += feed.add(token)
        assert not any(each in shown for each in stop)
        if feed.found is not None:
            break
    shown += feed.close()
    places = [text.find(each) for each in stop if each in text]
    if feed.found is None:
        assert (shown, places) == (text, [])
    else:
        # among stop strings that overlap, the one completed first ends the text
        assert text.startswith(shown + feed.found)


@given(
    ids=st.lists(
        st.sampled_from([11, 64, 65, 6897, 46071, 39305, 146, 187, 33768, 98, 50300]), min_size=1, max_size=12
    ),
    stop=st.lists(st.text("ab,\ufffd日", min_size=1, max_size=4), min_size=1, max_size=3),
    least=st.integers(0, 12),
)
@example(ids=[11, 146], stop=[",\ufffd"], least=0)
@example(ids=[64, 65, 64, 65, 64], stop=["aba"], least=4)
@example(ids=[46071, 11], stop=["a"], least=2)
@example(ids=[64, 65, 11], stop=["a", "ab,"], least=2)
def test_a_stop_string_ends_the_text_where_its_last_character_comes_late_enough(
    ids: list[int], stop: list[str], least: int
) -> None:
    decoder = gpt2().incremental_decoder()
    pieces = [decoder.feed(token) if token < 50257 else decoder.close() + "\ufffd" for token in ids]
    pieces.append(decoder.close())
    text = "".join(pieces)
    late = sum(map(len, pieces[: max(0, least - 1)])) if least <= len(ids) else len(text)
    ends = [
        (end, end - len(each), each)
        for each in stop
        for end in range(len(each), len(text) + 1)
        if end > late and text[:end].endswith(each)
    ]
    feed = TextFeed(gpt2(), stop=stop)
    shown = ""
    for new, token in enumerate(ids, start=1):
        shown += feed.add(token, may_stop=new >= least)
        if feed.found is not None:
            break
    shown += feed.close()
    assert (shown, feed.found) == ((text[: min(ends)[1]], min(ends)[2]) if ends else (text, None))


def test_a_stop_string_of_broken_bytes_is_told_as_the_end(forced_folder: Path) -> None:
    broken = TEXT.encode()[:4]  # a whole character and the first byte of another
    result = generate(load_gpt2(forced_folder), "A", tokens=len(broken), stop=TEXT[0] + "\ufffd", stop_ids=NEVER)
    assert (result.text, result.stopped_by) == ("", f"stop string {TEXT[0] + chr(0xFFFD)!r}")


def test_ids_that_the_tokenizer_does_not_have_show_as_one_character_each_with_one_note(random_folder: Path) -> None:
    full = load_gpt2(random_folder)
    vocabulary = Tokenizer.from_folder(random_folder).vocabulary
    smaller = Tokenizer(replace(vocabulary, tokens=vocabulary.tokens[:200]))
    result = generate(full, [1, 2, 3], tokens=60, stop_ids=NEVER, tokenizer=smaller)
    first = next(place for place, token in enumerate(result.ids) if token >= 200)
    assert result.text is not None
    assert result.text.count("\ufffd") >= sum(token >= 200 for token in result.ids)
    assert result.ids == generate(full, [1, 2, 3], tokens=60, stop_ids=NEVER).ids
    told = f"id {result.ids[first]} is unknown to the tokenizer; it shows as U+FFFD, and so does every such id"
    assert result.notes == (f"new token {first}: {told}",)
    prompts = [[65, 66], [65, 250, 66, 251]]
    asked = generate_batch(full, prompts, tokens=60, stop_ids=NEVER, tokenizer=smaller)
    assert [each.prompt for each in asked] == ["AB", "A\ufffdB\ufffd"]
    assert len(asked[0].notes) == 1
    assert asked[0].notes[0].startswith("prompt 1, position 1: id 250 is unknown")


def test_a_stop_string_is_cut_from_the_text_and_not_shown_in_part(forced_folder: Path) -> None:
    model = load_gpt2(forced_folder)
    run = stream(model, "A", tokens=100, stop="año", stop_ids=NEVER)
    chunks = list(run)
    result = run.result()
    assert result.stopped_by == "stop string 'año'"
    assert result.text == "".join(token.text for token in chunks)
    assert result.text == TEXT[: TEXT.index("año")]
    later = generate(model, "A", tokens=100, min_tokens=60, stop="año", stop_ids=NEVER)
    assert later.stopped_by == "tokens"


def test_stop_ids_end_the_text_after_min_tokens(random_model: GPT2) -> None:
    free = generate(random_model, [1, 2, 3], tokens=20, stop_ids=NEVER)
    stop = free.ids[6]
    first = free.ids.index(stop)
    stopped = generate(random_model, [1, 2, 3], tokens=20, stop_ids=stop)
    assert stopped.ids == free.ids[: first + 1]
    assert stopped.stopped_by == f"stop id {stop}"
    kept = generate(random_model, [1, 2, 3], tokens=20, stop_ids=stop, min_tokens=12)
    assert len(kept.ids) >= 12
    assert stop not in kept.ids[:11]


def test_generation_config_s_stop_token_is_honoured_by_default(random_model: GPT2) -> None:
    result = generate(random_model, [1, 2, 3], tokens=4)
    assert result.settings.stop_ids == (256,)
    assert result.origins["stop_ids"] == "generation_config.json"


def test_the_same_seed_gives_the_same_text_and_another_does_not(random_model: GPT2) -> None:
    first, again, other = (generate(random_model, [1, 2], tokens=30, temperature=1.5, seed=s) for s in (7, 7, 8))
    assert first.ids == again.ids
    assert first.ids != other.ids
    fresh = generate(random_model, [1, 2], tokens=30, temperature=1.5)
    assert fresh.seed is not None
    assert generate(random_model, [1, 2], tokens=30, temperature=1.5, seed=fresh.seed).ids == fresh.ids


def test_seeds_do_not_touch_torch_s_own_generator(random_model: GPT2) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    generate(random_model, [1, 2], tokens=5, temperature=1.0)
    assert torch.equal(torch.rand(3), expected)


def test_zero_temperature_is_greedy(random_model: GPT2) -> None:
    plain = generate(random_model, [1, 2, 3], tokens=10)
    assert generate(random_model, [1, 2, 3], tokens=10, temperature=0, top_k=3, seed=1).ids == plain.ids
    assert plain.seed is None


def test_a_batch_continues_each_prompt_as_if_alone(random_model: GPT2) -> None:
    prompts = [[5], [42, 0, 7, 250, 11], [0, 5, 17, 3, 99, 42, 7, 250]]
    together = generate_batch(random_model, prompts, tokens=15, stop_ids=NEVER)
    assert [each.ids for each in together] == [
        generate(random_model, p, tokens=15, stop_ids=NEVER).ids for p in prompts
    ]
    drawn = generate_batch(random_model, prompts, tokens=15, temperature=1.0, seed=3, stop_ids=NEVER)
    for row, prompt in enumerate(prompts):
        alone = generate(random_model, prompt, tokens=15, temperature=1.0, seed=drawn[row].seed, stop_ids=NEVER)
        assert (drawn[row].ids, drawn[row].settings) == (alone.ids, alone.settings)
        assert drawn[row].seed == 3 + row
    with pytest.raises(ArgumentError, match=r"seed: out of range .*as row 2 draws with 2 more"):
        generate_batch(random_model, prompts, tokens=1, temperature=1.0, seed=2**63 - 2)


def test_rows_of_a_batch_stop_each_in_its_time(random_model: GPT2) -> None:
    prompts = [[5], [42, 0, 7]]
    free = generate_batch(random_model, prompts, tokens=15, stop_ids=NEVER)
    stop = free[0].ids[4]
    stopped = generate_batch(random_model, prompts, tokens=15, stop_ids=stop)
    for before, after in zip(free, stopped, strict=True):
        end = before.ids.index(stop) + 1 if stop in before.ids else 15
        assert after.ids == before.ids[:end]


def test_without_the_cache_the_ids_are_the_same(random_model: GPT2) -> None:
    prompts = [[5], [42, 0, 7, 250, 11]]
    cached = generate_batch(random_model, prompts, tokens=15)
    assert [each.ids for each in generate_batch(random_model, prompts, tokens=15, cache=False)] == [
        each.ids for each in cached
    ]


@pytest.mark.parametrize("cache", [True, False])
def test_the_window_slides_when_asked_and_says_so(random_model: GPT2, cache: bool) -> None:  # noqa: FBT001
    prompt = list(range(50))
    result = generate(random_model, prompt, tokens=40, window="slide", cache=cache, stop_ids=NEVER)
    assert len(result.ids) == 40
    assert result.notes == ("at new token 15 the window slid: the last 32 tokens are read from position 0",)
    text = [*prompt, *result.ids[:15]]
    after = generate(random_model, text[-32:], tokens=25, stop_ids=NEVER)
    assert after.ids == result.ids[15:]
    with pytest.raises(OutOfRangeError, match="leaves no room for 40 more"):
        generate(random_model, prompt, tokens=40)
    long = generate(random_model, [1] * 100, tokens=2, window="slide")
    assert long.notes == ("at new token 0 the window slid: the last 32 tokens are read from position 0",)


@pytest.fixture(scope="module")
def short_model(tmp_path_factory: pytest.TempPathFactory) -> GPT2:
    """A random model of 32 positions."""
    folder = tmp_path_factory.mktemp("short")
    write(folder, seed=3, tie_word_embeddings=False)
    return load_gpt2(folder)


@given(
    lengths=st.lists(st.integers(1, 70), min_size=2, max_size=4),
    tokens=st.integers(1, 40),
    cache=st.booleans(),
    stop_ids=st.lists(st.integers(1, 96), max_size=2),
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([0.0, 1.0]),
)
@example(lengths=[40, 20], tokens=3, cache=True, stop_ids=[], seed=0, temperature=0.0)
@example(lengths=[31, 5, 20], tokens=40, cache=False, stop_ids=[], seed=0, temperature=0.0)
def test_each_row_of_a_batch_slides_when_it_is_full_itself(
    short_model: GPT2,
    lengths: list[int],
    tokens: int,
    cache: bool,  # noqa: FBT001
    stop_ids: list[int],
    seed: int,
    temperature: float,
) -> None:
    draws = random.Random(seed)
    prompts = [[draws.randrange(1, 97) for _ in range(length)] for length in lengths]
    options: dict[str, Any] = {"tokens": tokens, "cache": cache, "stop_ids": stop_ids, "window": "slide"}
    options |= {"temperature": temperature} if temperature else {}
    seeds = [{"seed": seed + number} if temperature else {} for number in range(len(prompts))]
    together = generate_batch(short_model, prompts, **options, **seeds[0])
    alone = [generate(short_model, prompt, **options, **its) for prompt, its in zip(prompts, seeds, strict=True)]
    assert [each.ids for each in together] == [each.ids for each in alone]
    slid = {
        note.replace("the window", f"the window of prompt {number}")
        for number, each in enumerate(alone)
        for note in each.notes
        if "slid" in note
    }
    assert {note for note in together[0].notes if "slid" in note} == slid


def test_logits_that_are_not_finite_are_told_after_a_slide_too(short_model: GPT2) -> None:
    bad = {name: value.clone() for name, value in short_model.parameters_by_name.items()}
    bad["wpe.weight"][20, 3] = float("nan")  # read again only when the window has slid and grown
    model = GPT2(short_model.config, bad)
    with pytest.raises(NonFiniteError, match="wpe: the first tap that is not finite"):
        generate(model, [1] * 60, tokens=20, window="slide")


def test_a_break_leaves_model_and_result_usable(random_model: GPT2) -> None:
    expected = generate(random_model, [1, 2, 3], tokens=12)
    run = stream(random_model, [1, 2, 3], tokens=12)
    for number, _ in enumerate(run):
        if number == 4:
            break
    assert run.result().ids == expected.ids[:5]
    assert [token.id for token in run] == list(expected.ids[5:])  # and it can be taken up again
    assert generate(random_model, [1, 2, 3], tokens=12).ids == expected.ids


def test_a_stream_is_an_iterator_of_the_only_row(random_model: GPT2) -> None:
    expected = generate(random_model, [1, 2, 3], tokens=12)
    run = stream(random_model, [1, 2, 3], tokens=12)
    assert iter(run) is run
    first = [next(run).id, next(run).id]
    assert (*first, *(token.id for token in run)) == expected.ids
    assert next(run, None) is None
    batch = stream_batch(random_model, [[5], [6, 7]], tokens=4)
    with pytest.raises(ArgumentError, match=r"several prompts grow together .*\.steps\(\)"):
        next(batch)
    assert len(list(batch.steps())) == 4


def test_a_break_inside_a_pass_leaves_the_model_usable(random_model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = generate(random_model, [1, 2, 3], tokens=12)
    run = stream(random_model, [1, 2, 3], tokens=12)
    tokens = list(itertools.islice(run, 4))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt("stop")

    with monkeypatch.context() as patch:
        patch.setattr(FastDecoder, "new_rows", interrupt)
        with pytest.raises(KeyboardInterrupt, match="stop"):
            next(iter(run))
    assert tuple(token.id for token in tokens) == run.result().ids == expected.ids[:4]
    assert generate(random_model, [1, 2, 3], tokens=12).ids == expected.ids


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_not_finite_are_refused_with_the_first_bad_tap(random_folder: Path, value: float) -> None:
    good = load_gpt2(random_folder)
    bad = dict(good.parameters_by_name)
    bad["h.1.mlp.c_fc.bias"] = bad["h.1.mlp.c_fc.bias"].clone()
    bad["h.1.mlp.c_fc.bias"][3] = value
    for options in ({"temperature": 1.0}, {"cache": False}, {}):
        with pytest.raises(NonFiniteError, match=r"h\.1\.mlp\.pre: the first tap that is not finite"):
            generate(GPT2(good.config, bad), [1, 2, 3], tokens=3, **options)


def poisoned(model: GPT2, name: str, row: int) -> GPT2:
    """The model with one row of a table that is not a number."""
    bad = {**model.parameters_by_name, name: model.parameters_by_name[name].clone()}
    bad[name][row] = float("nan")
    return GPT2(model.config, bad)


@pytest.mark.parametrize("options", [{}, {"cache": False}, {"temperature": 1.0, "seed": 1}], ids=str)
def test_a_row_of_a_batch_reads_nothing_that_it_would_not_read_alone(
    random_model: GPT2, options: dict[str, Any]
) -> None:
    whole = generate(random_model, [5, 42, 7], tokens=12, stop_ids=NEVER, **options)
    unread = next(token for token in range(257) if token not in {5, 42, 7, *whole.ids})
    padded = generate_batch(
        poisoned(random_model, "wte.weight", unread),
        [[5, 42, 7], [5, 42, 7, 5, 42]],
        tokens=1,
        stop_ids=NEVER,
        **options,
    )
    assert padded[0].ids == whole.ids[:1]
    stop = whole.ids[2]  # row 0 ends there; row 1 goes on to positions that row 0 never reaches
    other = [9]
    ended = whole.ids.index(stop) + 1
    assert stop not in generate(random_model, other, tokens=12, stop_ids=NEVER, **shifted(options)).ids
    reached = 3 + ended  # by row 0 after its end
    short = poisoned(random_model, "wpe.weight", reached)
    first, second = generate_batch(short, [[5, 42, 7], other], tokens=reached - 1, stop_ids=stop, **options)
    assert first.ids == whole.ids[:ended]
    assert second.ids == generate(short, other, tokens=reached - 1, stop_ids=stop, **shifted(options)).ids


def shifted(options: dict[str, Any]) -> dict[str, Any]:
    """What repeats the second row of a batch alone."""
    return {**options, "seed": options["seed"] + 1} if "seed" in options else options


def test_overflow_in_float16_is_refused(random_folder: Path) -> None:
    good = load_gpt2(random_folder, dtype=torch.float16)
    bad = dict(good.parameters_by_name)
    bad["ln_f.weight"] = bad["ln_f.weight"] * 60000
    with pytest.raises(NonFiniteError, match=r"ln_f: the first tap .*compute in float32 or bfloat16"):
        generate(GPT2(good.config, bad), [1, 2, 3], tokens=3)


def test_prompts_as_text_ids_tensor_and_array(random_model: GPT2) -> None:
    expected = generate(random_model, "Hi", tokens=5)
    assert expected.prompt_ids == (72, 105)
    assert (expected.prompt, str(expected)) == ("Hi", f"Hi{expected.text}")
    for prompt in ([72, 105], (72, 105), torch.tensor([72, 105]), torch.tensor([72, 105]).numpy()):
        assert generate(random_model, prompt, tokens=5).ids == expected.ids


def test_what_cannot_be_asked(random_model: GPT2) -> None:
    with pytest.raises(UnknownNameError, match=r"no option named 'temprature'; did you mean 'temperature'"):
        generate(random_model, "Hi", temprature=0.5)  # type: ignore[call-arg]
    with pytest.raises(UnknownNameError, match=r"no window named 'roll'; known: 'refuse', 'slide'"):
        generate(random_model, "Hi", window="roll")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="a prompt is a text or a row of ids"):
        generate(random_model, 5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match=r"tokenizer: not a tokenizer \(got 'gpt2'\); Tokenizer.from_folder"):
        generate(random_model, "Hi", tokenizer="gpt2")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match=r"cache: not a flag \(expected True or False, got 'no'\)"):
        generate(random_model, "Hi", cache="no")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match=r"lookup: not a flag .*got 1"):
        generate(random_model, "Hi", lookup=1)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="the prompt has no tokens"):
        generate(random_model, "")
    with pytest.raises(ArgumentError, match="no prompt was given"):
        generate_batch(random_model, [])
    with pytest.raises(OutOfRangeError, match=r"stop_ids: the id is beyond the vocabulary .*got 300"):
        generate(random_model, "Hi", stop_ids=300)
    bare = GPT2(random_model.config, random_model.parameters_by_name)
    with pytest.raises(ArgumentError, match=r"a text needs a tokenizer.*pass tokenizer="):
        generate(bare, "Hi")
    result = generate(bare, [72], tokens=2)
    assert (result.text, str(result)) == (None, " ".join(map(str, result.ids)))


def test_an_option_of_none_is_as_if_it_were_not_given(random_model: GPT2) -> None:
    nothing: Any = dict.fromkeys(Options.__annotations__)
    given, plain = generate(random_model, "Hi", **nothing), generate(random_model, "Hi")
    assert (given.ids, given.origins, given.notes) == (plain.ids, plain.origins, plain.notes)


def test_no_tokens_wanted(random_model: GPT2) -> None:
    result = generate(random_model, "Hi", tokens=0)
    assert (result.ids, result.text) == ((), "")


def test_steps_of_a_batch_name_the_rows_that_still_run(random_model: GPT2) -> None:
    free = generate(random_model, [5], tokens=10, stop_ids=NEVER)
    run = stream_batch(random_model, [[5], [6, 7]], tokens=10, stop_ids=free.ids[0])
    rows = [set(tokens) for tokens in run.steps()]
    assert rows[0] == {0, 1}
    assert all(0 not in each for each in rows[1:])
