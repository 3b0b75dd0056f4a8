"""The graph's step without a capture equals the lean step (test_devices.py: with one)."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.generation.decoder import FastDecoder
from labkit.generation.graph import GraphDecoder, rest, take
from labkit.load import load_gpt2
from labkit.model import GPT2
from tests.generation.test_decoder import worst

PROMPTS = [[5], [42, 0, 7, 250, 11], [0, 5, 17, 3, 99, 42, 7, 250]]


@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[1:2]], ids=["padded", "single"])
@pytest.mark.parametrize("bucket", [8, 64])
def test_the_graph_s_step_equals_the_lean_step(
    random_model: GPT2, monkeypatch: pytest.MonkeyPatch, prompts: list[list[int]], bucket: int
) -> None:
    monkeypatch.setattr("labkit.generation.decoder.BUCKET", bucket)
    stepped, replayed = (kind(random_model, batch=len(prompts)) for kind in (FastDecoder, GraphDecoder))
    assert torch.equal(replayed.prefill(prompts), stepped.prefill(prompts))
    for token in range(30):
        ids = torch.tensor([(token * 7 + row) % 257 for row in range(len(prompts))])
        assert worst(replayed.step(ids), stepped.step(ids)) < 1e-5
    assert replayed.length == stepped.length
    assert torch.equal(replayed.prefill(prompts), stepped.prefill(prompts))  # and anew, with other padding
    ids = torch.tensor([9] * len(prompts))
    assert worst(replayed.step(ids), stepped.step(ids)) < 1e-5


class Kinds(TorchDispatchMode):
    """The operations that run while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func.name())
        return func(*args, **(kwargs or {}))


def test_nothing_in_the_step_is_read_back_by_the_host(random_model: GPT2) -> None:
    """What a capture forbids: a value read from the device, which is the operation _local_scalar_dense."""
    decoder = GraphDecoder(random_model, batch=3)
    decoder.prefill(PROMPTS)
    with torch.inference_mode(), Kinds() as kinds:
        decoder._step(64)
    assert "aten::index_copy_" in kinds.seen
    assert not kinds.seen & {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero"}
    with Kinds() as planted:
        int(decoder._position)
    assert "aten::_local_scalar_dense" in planted.seen


def test_the_place_follows_the_position_on_the_device(random_model: GPT2) -> None:
    decoder = GraphDecoder(random_model)
    decoder.prefill([[1, 2, 3]])
    before = decoder._decoder.cache.table.clone()
    decoder.step(torch.tensor([4]))
    changed = (decoder._decoder.cache.table != before).any(-1).any(0).flatten(0, 1).any(0)
    assert changed.nonzero().flatten().tolist() == [3]


def test_a_decoder_at_rest_serves_the_next_text_that_it_fits(random_folder: Path) -> None:
    model, other = load_gpt2(random_folder), load_gpt2(random_folder)
    single, rows = (take(model, batch=batch, capacity=20) for batch in (1, 3))
    rest(model, single)
    assert take(other, batch=1, capacity=20) is not single
    assert take(model, batch=2, capacity=20) is not single
    rest(model, rows)
    assert take(model, batch=1, capacity=64) is single
    assert take(model, batch=1, capacity=20) is not single  # it is in use
    assert take(model, batch=3, capacity=20) is rows


def test_a_decoder_at_rest_is_not_used_for_changed_parameters(random_folder: Path) -> None:
    model = load_gpt2(random_folder, mode="owned")
    decoder = take(model, batch=1, capacity=20)
    rest(model, decoder)
    model.parameters_by_name["wte.weight"].mul_(2)
    assert take(model, batch=1, capacity=20) is not decoder
