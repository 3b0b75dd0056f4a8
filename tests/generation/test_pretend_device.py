"""The pretended device keeps a GPU's rules, and mistakes that only a GPU shows are seen on it."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from labkit.generation.decoder import FastDecoder
from labkit.generation.graph import GraphDecoder
from labkit.load import load_gpt2
from labkit.model import GPT2
from tests.generation.test_decoder import worst
from tests.oracles.pretend_device import Graph, pretend_device


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with pretend_device("cuda"):
        yield


def test_values_come_and_go() -> None:
    there = torch.arange(6.0).to("cuda").view(2, 3)
    assert (there.device, there.is_cuda) == (torch.device("cuda:0"), True)
    assert (there @ there.t()).cpu().tolist() == [[5.0, 14.0], [14.0, 50.0]]
    there[0].fill_(7)
    assert there.tolist() == [[7.0, 7.0, 7.0], [3.0, 4.0, 5.0]]
    assert torch.zeros(2, device="cuda").device == torch.tensor([1], device="cuda").device == there.device
    assert there.numel() == int(there.new_ones(()).item()) * 6


def test_two_places_do_not_mix() -> None:
    there = torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match="same device"):
        there + torch.ones(2)
    with pytest.raises(RuntimeError, match="same device"):
        torch.nn.functional.embedding(torch.tensor([0]), torch.ones(3, 2, device="cuda"))
    assert (there + torch.tensor(1.0)).tolist() == [2.0, 2.0]  # a single value may come along
    with pytest.raises(TypeError, match="can't convert cuda"):
        there.numpy()


def test_every_thread_has_the_device() -> None:
    found: list[Tensor] = []
    thread = threading.Thread(target=lambda: found.append(torch.ones(2, device="cuda") + 1))
    thread.start()
    thread.join()
    assert found[0].tolist() == [2.0, 2.0]


def test_mps_knows_no_float64() -> None:
    with pretend_device("mps"):
        there = torch.ones(2, device="mps")
        assert (there.device.type, (there + 1).tolist()) == ("mps", [2.0, 2.0])
        for wider in (there.double, lambda: torch.zeros(2, dtype=torch.float64, device="mps")):
            with pytest.raises(TypeError, match="float64"):
                wider()


def capture(graph: Graph, x: Tensor) -> Tensor:
    with torch.cuda.graph(graph):  # type: ignore[arg-type]
        return x * 2 + 1


def test_nothing_runs_while_a_graph_is_captured_and_everything_at_each_replay() -> None:
    x, graph = torch.ones(2, device="cuda"), torch.cuda.CUDAGraph()
    result = capture(graph, x)
    assert result.isnan().all()
    for value in (3.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert result.tolist() == [2 * value + 1] * 2


def test_a_capture_reads_nothing_back_and_takes_nothing_from_the_host() -> None:
    x, here = torch.ones(2, device="cuda"), torch.ones(2)
    for forbidden in (lambda: x[0].item(), lambda: x.cpu(), lambda: x.copy_(here), lambda: x.nonzero(), x.tolist):
        with pytest.raises(RuntimeError, match="capturing"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            forbidden()


def test_a_replay_needs_the_memory_that_was_captured() -> None:
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(2, device="cuda")
    result = capture(graph, x)
    graph.replay()
    del x
    with pytest.raises(RuntimeError, match="given up"):
        graph.replay()
    assert result.tolist() == [3.0, 3.0]


def follow(ours: GraphDecoder, folder: Path, prompts: list[list[int]]) -> float:
    """The largest difference of a few steps from the CPU's."""
    theirs = FastDecoder(load_gpt2(folder), batch=len(prompts))
    off = worst(ours.prefill(prompts).cpu(), theirs.prefill(prompts))
    for token in range(5):
        ids = torch.tensor([token * 7 + row for row in range(len(prompts))])
        off = max(off, worst(ours.step(ids.to("cuda")).cpu(), theirs.step(ids)))
    return off


@pytest.fixture
def model(random_folder: Path) -> GPT2:
    return load_gpt2(random_folder, device="cuda")


def test_planted_a_place_that_the_host_decides_is_seen(
    model: GPT2, random_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store(self: GraphDecoder, block: int, kv: Tensor) -> None:
        start = self._decoder.cache.length
        self._decoder.by_block[block][..., start : start + 1, :].copy_(kv)

    assert follow(GraphDecoder(model), random_folder, [[1, 2, 3]]) < 1e-5
    monkeypatch.setattr(GraphDecoder, "_store", store)
    assert follow(GraphDecoder(model), random_folder, [[1, 2, 3]]) > 1e-3


def test_planted_a_value_read_back_within_the_step_is_seen(
    model: GPT2, random_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = GraphDecoder._step
    monkeypatch.setattr(GraphDecoder, "_step", lambda self, bucket: (int(self._position), step(self, bucket))[1])
    with pytest.raises(RuntimeError, match="capturing"):
        follow(GraphDecoder(model), random_folder, [[1, 2, 3]])


def test_planted_a_padding_in_new_memory_is_seen(
    model: GPT2, random_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = GraphDecoder(model, batch=2)
    assert follow(decoder, random_folder, [[1], [2, 3]]) < 1e-5
    prefill = GraphDecoder.prefill

    def replaced(self: GraphDecoder, rows: list[list[int]]) -> Tensor:
        self._padded = torch.zeros_like(self._padded)
        return prefill(self, rows)

    monkeypatch.setattr(GraphDecoder, "prefill", replaced)
    with pytest.raises(RuntimeError, match="given up"):
        follow(decoder, random_folder, [[1, 4, 5], [2]])
