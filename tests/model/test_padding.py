"""Batches of unequal prompts: each row equals the row alone, padding on either side, with and without a cache."""

import pytest
import torch

from labkit.errors import ArgumentError, ArgumentTypeError, OutOfRangeError
from labkit.model import GPT2
from tests.model.pairs import IDS, pair

PROMPTS = [[5, 17], [42, 0, 7, 25, 11], [0, 5, 17, 3, 9, 42, 7, 20]]
NEXT = [[9, 33], [12, 8], [21, 64]]


class ListCache:
    """Keys and values joined end to end."""

    def __init__(self) -> None:
        self.length = 0
        self._held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def extend(self, block: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if block in self._held:
            old_k, old_v = self._held[block]
            k, v = torch.cat([old_k, k], dim=2), torch.cat([old_v, v], dim=2)
        self._held[block] = k, v
        return k, v


@pytest.fixture(scope="module", params=["eager", "sdpa"])
def model(request: pytest.FixtureRequest) -> GPT2:
    eager = pair()[0]
    return GPT2(eager.config, eager.parameters_by_name, attention=request.param)


def padded(side: str) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, PROMPTS))
    rows, masks = [], []
    for prompt in PROMPTS:
        pad = [0] * (width - len(prompt))
        ones = [1] * len(prompt)
        rows.append(pad + prompt if side == "left" else prompt + pad)
        masks.append(pad + ones if side == "left" else ones + pad)
    return torch.tensor(rows), torch.tensor(masks)  # each [batch, pos]


@pytest.mark.parametrize("side", ["left", "right"])
def test_each_row_equals_the_row_alone(model: GPT2, side: str) -> None:
    ids, mask = padded(side)
    logits = model.run(ids, attention_mask=mask).logits  # [batch, pos, vocab]
    assert logits.isfinite().all()
    for row, prompt in enumerate(PROMPTS):
        assert (logits[row][mask[row].bool()] - model(prompt)[0]).abs().max() < 1e-5


def test_without_a_mask_the_padded_rows_are_wrong(model: GPT2) -> None:
    ids, _ = padded("left")
    assert (model(ids)[0, -1] - model(PROMPTS[0])[0, -1]).abs().max() > 1e-2


def test_a_row_of_pure_padding_gives_no_nan(model: GPT2) -> None:
    run = model.run([[5, 17, 3], [0, 0, 0]], attention_mask=[[1, 1, 1], [0, 0, 0]], taps="h.*.attn.z")
    assert all(value.isfinite().all() for value in (run.logits, *run.taps.values()))


def test_a_cache_of_the_padded_batch_continues_each_row(model: GPT2) -> None:
    ids, mask = padded("left")
    cache = ListCache()
    model.run(ids, attention_mask=mask, cache=cache)
    cache.length = ids.shape[1]
    for step in range(2):
        mask = torch.cat([mask, torch.ones(3, 1, dtype=mask.dtype)], dim=1)
        logits = model.run([[row[step]] for row in NEXT], attention_mask=mask, cache=cache).logits
        cache.length += 1
        for row, prompt in enumerate(PROMPTS):
            alone = model(prompt + NEXT[row][: step + 1])[0, -1]
            assert (logits[row, -1] - alone).abs().max() < 1e-5


def test_several_positions_at_once_after_a_cache(model: GPT2) -> None:
    cache = ListCache()
    model.run([row[:3] for row in IDS], cache=cache)
    cache.length = 3
    logits = model.run([row[3:] for row in IDS], cache=cache).logits
    assert (logits - model(IDS)[:, 3:]).abs().max() < 1e-5


def test_positions_can_be_given(model: GPT2) -> None:
    shifted = model.run([[5, 17]], position_ids=[[3, 4]]).logits
    assert (shifted - model([[5, 17]])).abs().max() > 1e-2
    assert torch.equal(model.run([[5, 17]], position_ids=[[0, 1]]).logits, model([[5, 17]]))


def test_nothing_indexes_out_of_range(model: GPT2) -> None:
    with pytest.raises(
        OutOfRangeError, match=r"ids\[0, 1\]: the id is beyond the vocabulary \(expected 0 to 96, got 97\)"
    ):
        model([1, 97])
    with pytest.raises(OutOfRangeError, match=r"ids\[1, 0\]: .* got -1\)"):
        model([[1], [-1]])
    with pytest.raises(OutOfRangeError, match=r"position_ids\[32\]: .*n_positions = 32"):
        model([1] * 33)
    with pytest.raises(OutOfRangeError, match=r"position_ids\[0, 0\]: .* got 32\)"):
        model.run([[1]], position_ids=[[32]])
    assert model([1] * 32).shape == (1, 32, 97)


@pytest.mark.parametrize("ids", [[], [[]], torch.zeros(0, 3, dtype=torch.long), torch.zeros(1, 1, 1, dtype=torch.long)])
def test_an_empty_or_ill_shaped_batch_is_refused(model: GPT2, ids: object) -> None:
    with pytest.raises(ArgumentError, match="ids: not a batch of prompts"):
        model(ids)  # type: ignore[arg-type]


def test_what_is_no_table_of_ids_is_refused(model: GPT2) -> None:
    with pytest.raises(ArgumentTypeError, match=r"ids: not whole numbers \(expected integers, got torch.float32\)"):
        model(torch.ones(1, 2))
    with pytest.raises(ArgumentTypeError, match="ids: not a table of whole numbers"):
        model([[1, 2], [3]])
    with pytest.raises(ArgumentError, match=r"attention_mask: the shape is wrong \(expected \[1, 2\], got \[1, 3\]\)"):
        model.run([[1, 2]], attention_mask=[[1, 1, 1]])
    with pytest.raises(ArgumentError, match="attention_mask: not a mask of 0"):
        model.run([[1, 2]], attention_mask=[[1, 2]])
    with pytest.raises(ArgumentError, match=r"position_ids: the shape is wrong \(expected \[1, 2\], got \[3\]\)"):
        model.run([[1, 2]], position_ids=torch.arange(3))
