"""Two traces: the fixed order of outcomes, tolerance, estimate and checkpoint, histograms, and memory."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from labkit.cli.main import run
from labkit.compare import measure
from labkit.config import GPT2Config
from labkit.errors import ArgumentError, TraceError
from labkit.model.taps import tap_names
from labkit.verification.compare_traces import compare_traces
from labkit.verification.trace import TraceMetadata, write_trace
from labkit.verification.trace_comparison import TraceComparison
from labkit.verification.trace_record import Recorded, record_trace
from labkit.verification.ulps import EDGES, UlpHistogram

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def versus_clean(clean: Recorded, save: Callable[..., Path]) -> Callable[..., TraceComparison]:
    """Compare an edited trace with the clean one."""

    def compare(edit: Callable[[dict[str, Tensor]], object], **options: object) -> TraceComparison:
        tensors = dict(clean.tensors)
        edit(tensors)
        return compare_traces(
            save(tensors, clean.metadata, "a.safetensors"),
            save(clean.tensors, clean.metadata, "e.safetensors"),
            **options,
        )

    return compare


def test_a_trace_equals_itself_bit_for_bit(versus_clean: Callable[..., TraceComparison]) -> None:
    comparison = versus_clean(lambda t: None, atol=0.0)
    assert comparison.verdict == "same"
    assert all(tap.difference.equal for tap in comparison.taps)


@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}, {"ids": [[4, 5, 6, 7], [8]], "steps": 2}])
def test_two_clean_engines_are_the_same_under_estimated_budgets(
    checkpoint: Path, record: Callable[..., Path], options: dict[str, object]
) -> None:
    files = [record(f"{engine}.safetensors", engine=engine, **options) for engine in ("labkit", "hf")]
    comparison = compare_traces(*files)
    assert comparison.verdict == "same", comparison.headline()
    assert 0 < max(tap.used for tap in comparison.taps) < 0.9
    assert "estimated" in comparison.notes[-1]


@pytest.mark.parametrize(
    ("fault", "first"),
    [
        ("erf-gelu:1", "h.1.mlp.post"),
        ("transpose-c_proj:2", "h.2.attn.out"),
        ("epsilon-1e-6:0", "h.0.ln_1"),
        ("no-mask:0", "h.0.attn.pattern"),
    ],
)
def test_faults_are_beyond_estimated_budgets(
    record: Callable[..., Path], checkpoint: Path, fault: str, first: str
) -> None:
    files = [record("a.safetensors", plant=[fault]), record("e.safetensors", engine="hf")]
    assert compare_traces(*files).first_divergence == first
    against = compare_traces(*files, folder=checkpoint)
    assert against.first_divergence == first
    assert "expected against the checkpoint: same" in against.notes[-1]


def test_outcomes_come_in_a_fixed_order(versus_clean: Callable[..., TraceComparison]) -> None:
    def edit(tensors: dict[str, Tensor]) -> None:
        del tensors["wpe"]
        tensors["h.0.attn.c_attn"] = torch.ones(2, 6, 60)
        tensors["h.0.attn.q"] = tensors["h.0.attn.q"][:, :, :3]
        tensors["h.0.attn.v"] = tensors["h.0.attn.v"].to(torch.bfloat16)
        tensors["h.1.ln_1"] = tensors["h.1.ln_1"].clone()
        tensors["h.1.ln_1"][0, 0, 0] = torch.nan
        tensors["step.1.logits"] = tensors["step.1.logits"] + 1

    taps = {tap.name: tap for tap in versus_clean(edit, atol=0.1).taps}
    assert (taps["wpe"].problem, taps["h.0.attn.c_attn"].problem) == ("missing", "extra")
    assert (taps["h.0.attn.q"].problem, taps["h.0.attn.q"].remark) == ("shape", "[2, 5, 3, 4], expected [2, 5, 6, 4]")
    assert (taps["h.0.attn.v"].problem, taps["h.0.attn.v"].remark) == ("", "BF16, expected F32")
    assert taps["h.1.ln_1"].problem == "non-finite"
    assert (taps["step.1.logits"].problem, taps["step.1.logits"].beyond) == ("values", 2 * 97)
    assert [name for name, tap in taps.items() if tap.differs] == ["h.0.attn.q", "h.1.ln_1", "step.1.logits"]


def test_the_parts_add_up_to_the_whole(
    versus_clean: Callable[..., TraceComparison], clean: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labkit.verification.compare_traces.PART_NUMEL", 50)
    moved = {n: t + 1e-3 * torch.randn(t.shape) for n, t in clean.tensors.items() if t.is_floating_point()}
    comparison = versus_clean(lambda t: t.update(moved), ulps="on")
    for tap in comparison.taps:
        if not tap.name.endswith(".attn.scores"):
            whole = measure(moved[tap.name], clean.tensors[tap.name])
            assert replace(tap.difference, mean_abs=0.0) == replace(whole, mean_abs=0.0)
            assert tap.difference.mean_abs == pytest.approx(whole.mean_abs)
    (histogram,) = comparison.histograms
    assert sum(map(sum, histogram.counts.values())) == sum(tap.difference.numel for tap in comparison.taps)


def test_padding_and_masked_scores_are_not_compared(checkpoint: Path, save: Callable[..., Path]) -> None:
    recorded = record_trace(checkpoint, engine="labkit", ids=[[5, 6, 7, 8], [9, 1]], steps=1)
    spoiled = {n: t.clone() for n, t in recorded.tensors.items()}
    spoiled["h.0.mlp.pre"][1, :2] = torch.nan
    spoiled["h.1.attn.v"][1, :, 1] = 7.0
    spoiled["h.1.attn.scores"][0].masked_fill_(torch.ones(4, 4, dtype=torch.bool).triu(1), -torch.inf)
    spoiled["step.0.h.1.attn.scores"][1, ..., :2] = -torch.inf
    files = [save(t, recorded.metadata, name) for t, name in ((spoiled, "a"), (recorded.tensors, "e"))]
    assert compare_traces(*files, atol=0.0).verdict == "same"
    spoiled["step.0.h.1.attn.scores"][1, 0, 0, 2] += 1
    assert compare_traces(save(spoiled, recorded.metadata, "a"), files[1], atol=0.0).verdict == "differs"


def test_traces_that_cannot_be_compared(clean: Recorded, save: Callable[..., Path]) -> None:
    good = save(clean.tensors, clean.metadata, "e.safetensors")
    other = {**clean.tensors, "input_ids": clean.tensors["input_ids"] + 1}
    with pytest.raises(TraceError, match="input_ids is not the same in both traces"):
        compare_traces(save(other, clean.metadata), good)
    eighths = {**clean.tensors, "ln_f": clean.tensors["ln_f"].to(torch.float8_e4m3fn)}
    with pytest.raises(TraceError, match=r"ln_f: a tap must be floating-point .* got F8_E4M3"):
        compare_traces(save(eighths, clean.metadata), good)
    lone = {n: clean.tensors[n] for n in clean.tensors if n.endswith("input_ids")}
    with pytest.raises(TraceError, match="no tap in common"):
        compare_traces(save(lone, clean.metadata), good)
    with pytest.raises(ArgumentError, match="the tolerance cannot be used"):
        compare_traces(good, good, atol=-1.0)
    prompt = save({n: t for n, t in clean.tensors.items() if not n.startswith("step.")}, clean.metadata)
    with pytest.raises(TraceError, match=r"step\.0\.input_ids is missing"):
        compare_traces(prompt, good)


def test_histogram_counts_every_element_once() -> None:
    histogram = UlpHistogram(torch.bfloat16)
    expected = torch.tensor([1.0, 1.5, 3.0, 0.0, -8.0])
    actual = expected + torch.tensor([0.0, 2**-7, 2**-5, 0.5, torch.nan])
    histogram.add(actual, expected)
    assert histogram.counts[0] == [1, 1, 0, 0, 0, 0, 0]
    assert histogram.counts[1] == [0, 0, 1, 0, 0, 0, 0]
    assert histogram.counts[None][-1] == 1
    assert histogram.counts[3] == [0] * len(EDGES) + [1]


def test_on_the_command_line(record: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(record("a.safetensors", plant=["erf-gelu:1"])), str(record("e.safetensors"))]
    assert run(["compare", files[1], files[1]]) == 0
    assert run(["compare", *files, "--atol", "1e-6", "--ulps"]) == 1
    text = capsys.readouterr().out
    assert "h.1.mlp.post (from module h.1.mlp.act) is the first beyond the stated tolerance of 1e-06" in text
    assert "2^-1" in text
    assert run(["compare", *files, "--json", "-"]) == 1
    fields = json.loads(capsys.readouterr().out)
    assert (fields["verdict"], fields["first_divergence"], fields["rule"]) == ("differs", "h.1.mlp.post", "estimate")
    assert run(["compare", files[0], files[0] + ".none"]) == 2


@pytest.mark.parametrize(("rows", "moved"), [(600, 300), pytest.param(1000, 1, marks=pytest.mark.slow)])
def test_large_traces_take_little_memory(tmp_path: Path, rows: int, moved: int) -> None:
    """Files of 192 and 320 MB, of whose rows one in ``moved`` differs: a child process grows by under 100 MB."""
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=80_000, n_positions=1024)
    tensors = {"input_ids": torch.arange(rows)[None], "logits": torch.rand(1, rows, 80_000)}
    for name in ("e", "a"):
        write_trace(tmp_path / name, tensors, TraceMetadata(engine=name, config=config))
        tensors["logits"][:, ::moved] += 1e-3
        tensors["logits"][0, 500, 5] += 1
    code = (
        "import resource, sys\n"
        "from labkit.verification.compare_traces import compare_traces\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "result = compare_traces(sys.argv[1], sys.argv[2], atol=0.5)\n"
        "after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(after - before, result.taps[0].beyond, *result.taps[0].difference.worst)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a"), str(tmp_path / "e")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown, beyond, *worst = map(int, done.stdout.split())
    assert (beyond, worst) == (1, [0, 500, 5])
    assert grown * (1 if sys.platform == "darwin" else 1024) < 100e6


def test_the_outcome_says_how_many_stages_both_hold(
    clean: Recorded, save: Callable[..., Path], capsys: Capture
) -> None:
    whole, fewer, wrong = clean.tensors, dict(clean.tensors), dict(clean.tensors)
    for name in ("wte", "ln_f", "logits"):
        del fewer[name]
        del wrong[name]
    wrong["h.0.mlp.post"] = wrong["h.0.mlp.post"] + 1
    every, few, off = (
        str(save(tensors, clean.metadata, f"{number}.safetensors"))
        for number, tensors in enumerate((whole, fewer, wrong))
    )
    count = 3 * len(tap_names(clean.metadata.config))  # the prompt and two decode steps
    assert run(["compare", every, every]) == 0
    assert f"(estimated) in all {count} stages; the largest is 0" in " ".join(capsys.readouterr().out.split())
    for actual, expected, missing in ((few, every, "not_in_actual"), (every, few, "not_in_expected")):
        assert run(["compare", actual, expected, "--json", "-"]) == 0
        stated = json.loads(capsys.readouterr().out)
        assert f"in the {count - 3} stages that both hold, of {count}; the largest" in stated["headline"]
        assert (stated["compared"], stated["stage_count"]) == (count - 3, count)
        assert stated[missing] == ["wte", "ln_f", "logits"]
    assert run(["compare", off, every]) == 1
    assert f"; compared: the {count - 3} stages that both hold, of {count}" in " ".join(capsys.readouterr().out.split())
