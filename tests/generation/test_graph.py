"""The graph's step without a capture equals the lean step; on a GPU, with it, everything again."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.generation import generate, generate_batch, greedy
from labkit.generation.decoder import FastDecoder
from labkit.generation.graph import GraphDecoder
from labkit.load import load_gpt2
from labkit.model import GPT2
from tests.generation.test_decoder import worst

PROMPTS = [[5], [42, 0, 7, 250, 11], [0, 5, 17, 3, 99, 42, 7, 250]]

no_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
no_mps = pytest.mark.skipif(not torch.backends.mps.is_available(), reason="no MPS device")


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


@pytest.mark.gpu
@no_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_cuda_equals_cpu(random_folder: Path, dtype: torch.dtype) -> None:
    on_gpu = load_gpt2(random_folder, device="cuda", dtype=dtype)
    on_cpu = load_gpt2(random_folder, dtype=dtype)
    allowed = {torch.float32: 1e-5, torch.bfloat16: 0.06, torch.float16: 8e-3}[dtype]
    ours, theirs = GraphDecoder(on_gpu, batch=3), FastDecoder(on_cpu, batch=3)
    assert worst(ours.prefill(PROMPTS).cpu(), theirs.prefill(PROMPTS)) < allowed
    for token in range(50):
        ids = torch.tensor([(token * 7 + row) % 257 for row in range(3)])
        assert worst(ours.step(ids.cuda()).cpu(), theirs.step(ids)) < allowed
    if dtype == torch.float32:
        assert not torch.backends.cuda.matmul.allow_tf32
        assert greedy(on_gpu, PROMPTS[1], 40) == greedy(on_cpu, PROMPTS[1], 40)


@pytest.mark.gpu
@no_cuda
def test_seeds_repeat_on_cuda(random_folder: Path) -> None:
    model = load_gpt2(random_folder, device="cuda")
    first, again = (generate_batch(model, PROMPTS, tokens=20, temperature=1.0, seed=3) for _ in range(2))
    assert [each.ids for each in first] == [each.ids for each in again]


@pytest.mark.gpu
@no_mps
def test_mps_equals_cpu(random_folder: Path) -> None:
    on_mps, on_cpu = load_gpt2(random_folder, device="mps"), load_gpt2(random_folder)
    assert generate(on_mps, [1, 2, 3], tokens=20).ids == generate(on_cpu, [1, 2, 3], tokens=20).ids
