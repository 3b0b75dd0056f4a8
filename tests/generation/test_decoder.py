"""The lean pass against the readable model: every step, batches with padding, flags, dtypes, the cache itself."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from labkit.config import GPT2Config
from labkit.errors import ArgumentError, ArgumentTypeError, OutOfRangeError
from labkit.generation.cache import KVCache
from labkit.generation.decoder import FastDecoder, WholeText
from labkit.generation.prepared import prepare
from labkit.load import load_gpt2
from labkit.model import GPT2
from tests.oracles.random_checkpoint import random_fields, write

STEPS = [[9, 3, 1], [20, 8, 7], [11, 4, 30], [0, 0, 0]]


def worst(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference in units of the row's largest logit."""
    return float(((actual - expected).double().abs() / expected.double().abs().amax(-1, keepdim=True)).max())


@pytest.mark.parametrize("seed", range(8))
def test_every_step_equals_the_readable_model(tmp_path: Path, seed: int) -> None:
    fields = random_fields(seed)
    write(tmp_path, seed=seed, **fields)
    model = load_gpt2(tmp_path)
    prompts = [[5], [7, 8, 9], [1, 2, 3, 4, 5, 6]]
    fast, whole = FastDecoder(model, batch=3), WholeText(model)
    assert worst(fast.prefill(prompts), whole.prefill(prompts)) < 1e-5
    for step in STEPS:
        ids = torch.tensor(step)
        assert worst(fast.step(ids), whole.step(ids)) < 1e-5
    assert fast.length == whole.length == 10


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float64, 1e-14), (torch.bfloat16, 0.06), (torch.float16, 8e-3)])
def test_other_dtypes(random_folder: Path, dtype: torch.dtype, allowed: float) -> None:
    model = load_gpt2(random_folder, dtype=dtype)
    fast, whole = FastDecoder(model), WholeText(model)
    assert worst(fast.prefill([[5, 6, 7]]), whole.prefill([[5, 6, 7]])) < allowed
    for step in range(30):
        ids = torch.tensor([step * 7 % 257])
        assert worst(fast.step(ids), whole.step(ids)) < allowed


def test_upcast_attention_in_half_precision(tmp_path: Path) -> None:
    write(tmp_path, seed=4, reorder_and_upcast_attn=True, tie_word_embeddings=False)
    model = load_gpt2(tmp_path, dtype=torch.bfloat16)
    fast, whole = FastDecoder(model), WholeText(model)
    assert worst(fast.prefill([[5, 6]]), whole.prefill([[5, 6]])) < 0.06
    assert worst(fast.step(torch.tensor([3])), whole.step(torch.tensor([3]))) < 0.06


@pytest.mark.parametrize("build_has_onednn", [True, False])
def test_packed_and_plain_products_agree(
    random_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    build_has_onednn: bool,  # noqa: FBT001
) -> None:
    if not build_has_onednn:
        monkeypatch.setattr("labkit.generation.prepared.available", lambda _: False)
    model = load_gpt2(random_folder)
    assert (prepare(model).packed is prepare(model)) != build_has_onednn
    drafts, plain = FastDecoder(model, drafts=True), FastDecoder(model)
    assert worst(drafts.prefill([[5, 6, 7]]), plain.prefill([[5, 6, 7]])) < 1e-5
    more = torch.tensor([[9, 2, 6, 5]])
    assert worst(drafts.extend(more)[0], plain.extend(more)[0]) < 1e-5
    assert torch.equal(prepare(model).packed.blocks[0].ln_1[0], prepare(model).blocks[0].ln_1[0])


@pytest.mark.parametrize("change", ["skip a block", "position off by one", "padding seen"])
def test_the_comparison_sees_a_planted_fault(random_model: GPT2, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    fast, whole = FastDecoder(random_model, batch=2), WholeText(random_model)
    if change == "skip a block":
        monkeypatch.setattr(fast, "_shared", replace(fast._shared, blocks=fast._shared.blocks[:-1]))
    if change == "position off by one":
        monkeypatch.setattr(fast, "prepared", replace(fast.prepared, wpe=fast.prepared.wpe.roll(1, 0)))
    rows = [[5], [7, 8, 9]]
    expected, actual = whole.prefill(rows), fast.prefill(rows)
    if change == "padding seen":
        monkeypatch.setattr(fast, "padded", torch.zeros_like(fast.padded))
        expected, actual = whole.step(torch.tensor([3, 4])), fast.step(torch.tensor([3, 4]))
    assert worst(actual, expected) > 1e-2


def test_several_tokens_at_once_equal_one_by_one(random_model: GPT2) -> None:
    prompt, more = [3, 1, 4, 1, 5], [9, 2, 6, 5]
    one, several = FastDecoder(random_model), FastDecoder(random_model)
    one.prefill([prompt])
    several.prefill([prompt])
    expected = torch.stack([one.step(torch.tensor([token]))[0].clone() for token in more])
    assert worst(several.extend(torch.tensor([more]))[0], expected) < 1e-5
    several.cache.rewind(7)
    assert worst(several.step(torch.tensor([6])), expected[2:3]) < 1e-5


def test_rows_of_a_batch_equal_the_prompts_alone(random_model: GPT2) -> None:
    prompts = [[0, 5], [42, 0, 7, 250, 11], [0, 5, 17, 3, 99, 42, 7, 250]]  # id 0 is a token, not padding
    batch = FastDecoder(random_model, batch=3)
    together = [batch.prefill(prompts), batch.step(torch.tensor([9, 120, 201])), batch.step(torch.tensor([33, 8, 64]))]
    for row, (prompt, steps) in enumerate(zip(prompts, [[9, 33], [120, 8], [201, 64]], strict=True)):
        alone = FastDecoder(random_model)
        separate = [alone.prefill([prompt]), *(alone.step(torch.tensor([token])) for token in steps)]
        for ours, theirs in zip(together, separate, strict=True):
            assert worst(ours[row : row + 1], theirs) < 1e-5


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_readable_model_takes_the_cache_as_well(random_folder: Path, attention: Any) -> None:
    model = load_gpt2(random_folder, attention=attention)
    cache = KVCache(model.config, capacity=16)
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    expected = model(ids)[0]
    first = model.run(ids[:5], cache=cache).logits[0]
    rest = torch.cat([model.run([token], cache=cache).logits[0] for token in ids[5:]])
    assert cache.length == 8
    assert worst(torch.cat([first, rest]), expected) < 1e-5


def test_a_pass_that_breaks_off_leaves_the_cache_as_it_was(random_folder: Path) -> None:
    model = load_gpt2(random_folder)
    cache = KVCache(model.config, capacity=16)
    model.run([1, 2, 3], cache=cache)

    def interrupt(value: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt("stop")

    with pytest.raises(KeyboardInterrupt, match="stop"):
        model.run([4], cache=cache, replace={"h.1.mlp.out": interrupt})
    assert cache.length == 3
    again = model.run([4], cache=cache).logits
    assert worst(again[0], model([1, 2, 3, 4])[0, -1:]) < 1e-5


def test_the_cache_refuses_what_does_not_fit() -> None:
    config = GPT2Config(n_layer=2, n_head=2, n_embd=8, n_positions=16)
    with pytest.raises(OutOfRangeError, match=r"capacity: .*1 to n_positions = 16, got 17"):
        KVCache(config, capacity=17)
    cache = KVCache(config, capacity=2)
    new = torch.zeros(1, 2, 3, 4)
    with pytest.raises(OutOfRangeError, match=r"the cache is full \(expected at most 2 positions, got 3\)"):
        cache.extend(0, new, new)
    with pytest.raises(OutOfRangeError, match=r"not a length to go back to \(expected 0 to 0, got 1\)"):
        cache.rewind(1)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (
            ((2, 2, 1, 4), (2, 2, 1, 4)),
            r"the keys do not fit the cache \(expected \[batch 1, head 2, pos, head_dim 4\]",
        ),
        (((1, 3, 1, 4), (1, 3, 1, 4)), r"the keys do not fit the cache .*got \[1, 3, 1, 4\]"),
        (((1, 2, 1, 4), (1, 2, 1, 5)), r"the values do not fit the cache .*got \[1, 2, 1, 5\]"),
        (((1, 2, 4), (1, 2, 4)), r"the keys do not fit the cache .*got \[1, 2, 4\]"),
        (((1, 2, 1, 4), (1, 2, 3, 4)), "more keys than values or fewer"),
    ],
)
def test_keys_and_values_that_the_cache_cannot_hold(shapes: tuple[tuple[int, ...], ...], said: str) -> None:
    cache = KVCache(GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=16), capacity=4)
    k, v = (torch.ones(shape) for shape in shapes)
    with pytest.raises(ArgumentError, match=said):
        cache.extend(0, k, v)
    assert cache.length == 0
    assert not cache.table.any()


def test_a_cache_of_no_size_and_blocks_that_are_not_there() -> None:
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=16)
    with pytest.raises(OutOfRangeError, match="batch: a cache has rows"):
        KVCache(config, capacity=2, batch=0)
    for sizes in ({"capacity": 2.0}, {"capacity": None}, {"capacity": True}, {"capacity": 2, "batch": "1"}):
        with pytest.raises(ArgumentTypeError, match=r"^(capacity|batch): not a whole number"):
            KVCache(config, **sizes)  # type: ignore[arg-type]
    cache, new = KVCache(config, capacity=2), torch.ones(1, 2, 1, 4)
    for block in (1, -1):
        with pytest.raises(OutOfRangeError, match=r"there is no such block \(expected 0 to 0"):
            cache.extend(block, new, new)
    with pytest.raises(ArgumentTypeError, match="length: not a whole number"):
        cache.rewind(0.0)  # type: ignore[arg-type]


def test_a_decoder_for_another_number_of_prompts(random_model: GPT2) -> None:
    with pytest.raises(ArgumentError, match=r"prompts: another number of rows \(expected 2, got 1\)"):
        FastDecoder(random_model, batch=2).prefill([[1, 2]])


def test_nothing_is_allocated_anew_for_the_cache(random_model: GPT2) -> None:
    fast = FastDecoder(random_model)
    fast.prefill([[1, 2, 3]])
    before = fast.cache.table.data_ptr()
    for token in range(20):
        fast.step(torch.tensor([token]))
    assert fast.cache.table.data_ptr() == before


@pytest.mark.parametrize("count", [2, 3, 4])
def test_products_shared_between_threads_agree(random_model: GPT2, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    fast, whole = FastDecoder(random_model), WholeText(random_model)
    assert fast._single is not fast.prepared
    assert fast._single.blocks[0].c_fc[1].data_ptr() == fast.prepared.blocks[0].c_fc[1].data_ptr()
    assert worst(fast.prefill([[5, 6, 7]]), whole.prefill([[5, 6, 7]])) < 1e-5
    for token in (9, 2, 6, 5):
        assert worst(fast.step(torch.tensor([token])), whole.step(torch.tensor([token]))) < 1e-5


def test_sizes_that_do_not_divide_stay_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, seed=1, n_embd=21, n_head=3, n_inner=22)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    fast = FastDecoder(load_gpt2(tmp_path))
    assert fast._single is fast.prepared
    assert fast.prefill([[1, 2]]).shape == (1, 97)
