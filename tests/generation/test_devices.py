"""Everything that runs on a GPU: on the pretended one always, on a real one where there is one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import labkit
from labkit.bench.generate import bench_generate
from labkit.errors import NonFiniteError
from labkit.generation import generate, generate_batch, greedy, stream
from labkit.generation.decoder import FastDecoder
from labkit.generation.dtype_study import dtype_study
from labkit.generation.graph import GraphDecoder
from labkit.load import load_gpt2
from labkit.model import GPT2
from labkit.verification.invariants import check_model
from labkit.verification.trace_record import record_trace
from tests.generation.test_decoder import worst
from tests.generation.test_graph import PROMPTS
from tests.oracles.pretend_device import pretend_device

no_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
no_mps = pytest.mark.skipif(not torch.backends.mps.is_available(), reason="no MPS device")


def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """A device's name, the device being there while the test runs."""
    kind, how = request.param
    if how == "real":
        yield kind
        return
    with pretend_device(kind) as device:
        yield device


CUDA = [("cuda", "pretended"), pytest.param(("cuda", "real"), marks=[pytest.mark.gpu, no_cuda])]
MPS = [("mps", "pretended"), pytest.param(("mps", "real"), marks=[pytest.mark.gpu, no_mps])]

cuda = pytest.fixture(place, name="cuda", params=CUDA, ids=" ".join)
gpu = pytest.fixture(place, name="gpu", params=[*CUDA, *MPS], ids=" ".join)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_step_equals_the_cpu_s(random_folder: Path, cuda: str, dtype: torch.dtype) -> None:
    on_gpu = load_gpt2(random_folder, device=cuda, dtype=dtype)
    on_cpu = load_gpt2(random_folder, dtype=dtype)
    allowed = {torch.float32: 1e-5, torch.bfloat16: 0.06, torch.float16: 8e-3}[dtype]
    ours, theirs = GraphDecoder(on_gpu, batch=3), FastDecoder(on_cpu, batch=3)
    for prompts in (PROMPTS, PROMPTS[::-1]):  # the second text with other padding, and no new capture
        assert worst(ours.prefill(prompts).cpu(), theirs.prefill(prompts)) < allowed
        for token in range(50):
            ids = torch.tensor([(token * 7 + row) % 257 for row in range(3)])
            assert worst(ours.step(ids.to(cuda)).cpu(), theirs.step(ids)) < allowed
    assert len(ours._replays) == 1
    if dtype == torch.float32:
        assert not torch.backends.cuda.matmul.allow_tf32
        assert greedy(on_gpu, PROMPTS[1], 40) == greedy(on_cpu, PROMPTS[1], 40)


def test_a_step_is_captured_once_for_each_bucket_and_all_texts(
    random_folder: Path, cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured: list[int] = []
    capture = GraphDecoder._captured
    monkeypatch.setattr("labkit.generation.decoder.BUCKET", 16)
    monkeypatch.setattr(GraphDecoder, "_captured", lambda self, b: (captured.append(b), capture(self, b))[1])
    model, on_cpu = load_gpt2(random_folder, device=cuda), load_gpt2(random_folder)
    for prompt in ([1, 2, 3], [4], [5, 6, 7, 8]):
        assert greedy(model, prompt, 40) == greedy(on_cpu, prompt, 40)
    assert captured == [16, 32, 48]


def test_two_texts_at_once_do_not_share_a_decoder(random_folder: Path, gpu: str) -> None:
    model, on_cpu = load_gpt2(random_folder, device=gpu), load_gpt2(random_folder)
    streams = [stream(model, prompt, tokens=12) for prompt in PROMPTS]
    taken = [[token.id for token in tokens] for tokens in zip(*streams, strict=True)]
    alone = [greedy(on_cpu, prompt, 12) for prompt in PROMPTS]
    assert [list(ids) for ids in zip(*taken, strict=True)] == alone


def test_the_ways_of_making_text_give_the_cpu_s(random_folder: Path, gpu: str) -> None:
    model, on_cpu = load_gpt2(random_folder, device=gpu), load_gpt2(random_folder)
    prompt = PROMPTS[1]
    for options in (
        {"lookup": True},
        {"cache": False},
        {"repetition_penalty": 1.3},
        {"min_tokens": 5, "stop_ids": (7, 9)},
    ):
        ours, theirs = (generate(each, prompt, tokens=20, **options) for each in (model, on_cpu))  # type: ignore[arg-type]
        assert ours.ids == theirs.ids, options
    slid, expected = (generate(each, prompt, tokens=70, window="slide") for each in (model, on_cpu))
    assert slid.ids == expected.ids
    rows, expected_rows = (generate_batch(each, PROMPTS, tokens=20) for each in (model, on_cpu))
    assert [each.ids for each in rows] == [each.ids for each in expected_rows]


def test_seeds_repeat(random_folder: Path, gpu: str) -> None:
    model = load_gpt2(random_folder, device=gpu)
    options = {"tokens": 20, "temperature": 1.0, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "seed": 3}
    first, again = (generate_batch(model, PROMPTS, **options) for _ in range(2))  # type: ignore[arg-type]
    assert [each.ids for each in first] == [each.ids for each in again]


def test_the_text_ends_in_a_clear_error_where_logits_are_not_finite(random_folder: Path, gpu: str) -> None:
    model = load_gpt2(random_folder, device=gpu, mode="owned")
    model.parameters_by_name["h.1.mlp.c_fc.bias"].fill_(torch.nan)
    with pytest.raises(NonFiniteError, match=r"h\.1\.mlp\.pre"):
        greedy(model, PROMPTS[1], 3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_verify_judges_the_device_s_taps(random_folder: Path, gpu: str, dtype: str) -> None:
    clean = labkit.verify(random_folder, device=gpu, dtype=dtype, ids=PROMPTS[1:], tokens=5)
    assert (clean.verdict, clean.device) == ("same", gpu)
    wrong = labkit.verify(random_folder, device=gpu, dtype=dtype, ids=PROMPTS[1:], tokens=5, plant="qkv-order:1")
    assert wrong.verdict == "differs"
    assert [finding.cause for finding in wrong.findings] == ["qkv-order"]


def test_verify_holds_cuda_s_sums_to_float32(random_folder: Path, cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    switches = torch.backends.cuda.matmul
    seen: set[bool] = set()
    run = GPT2.run

    def watched(self: GPT2, *args: object, **options: object) -> object:
        if self.device.type == "cuda" and "replace" in options:
            seen.add(switches.allow_bf16_reduced_precision_reduction)
        return run(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(GPT2, "run", watched)
    before = switches.allow_bf16_reduced_precision_reduction
    labkit.verify(random_folder, device=cuda, dtype="bfloat16", ids=PROMPTS[1:2], tokens=1)
    assert seen == {False}
    assert switches.allow_bf16_reduced_precision_reduction == before


@pytest.mark.parametrize("engine", ["labkit", "hf"])
def test_traces_of_the_device_verify(random_folder: Path, gpu: str, engine: str) -> None:
    recorded = record_trace(random_folder, engine=engine, ids=PROMPTS, device=gpu, steps=3)
    expected = record_trace(random_folder, engine=engine, ids=PROMPTS, steps=3)
    assert recorded.metadata.device == gpu
    assert list(recorded.tensors) == list(expected.tensors)
    for name, tensor in recorded.tensors.items():
        assert tensor.device.type == "cpu"
        torch.testing.assert_close(tensor, expected.tensors[name], rtol=1e-4, atol=1e-4)


def test_invariants_hold_on_the_device(random_folder: Path, gpu: str) -> None:
    results = check_model(load_gpt2(random_folder, device=gpu))
    assert {result.verdict for result in results} == {"held", "not applicable"}, results  # the head is not tied


def test_the_study_runs_on_the_device(random_folder: Path, gpu: str) -> None:
    ours, theirs = (dtype_study(random_folder, ids=list(range(40)), device=place) for place in (gpu, "cpu"))
    assert ours.perplexity == pytest.approx(theirs.perplexity, rel=1e-4)


def test_the_bench_measures_the_device_and_holds_it_to_a_gpu_s_goals(random_folder: Path, gpu: str) -> None:
    (small,) = bench_generate(random_folder, device=gpu, tokens=4, repeats=1)
    assert small.device.startswith(gpu)
    assert [goal for goal, _ in small.goals()] == ["decode, float32: 3.00x transformers"]
