"""The verdict from a trace file alone: clean engines pass, faults are named, partial and decode traces work."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from labkit.cli.main import run
from labkit.errors import TraceError
from labkit.generation import KVCache
from labkit.load import load_gpt2
from labkit.verification.precision import Precision
from labkit.verification.trace import TraceMetadata
from labkit.verification.trace_record import Recorded, record_trace
from labkit.verification.verify_trace import verify_trace
from tests.oracles import random_checkpoint
from tests.verification.trace.conftest import IDS

PADDED = [[5, 17, 3, 96, 42, 7, 80, 9], [11, 2, 8]]


@pytest.mark.parametrize("engine", ["hf", "labkit"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_clean_engines_pass_in_every_dtype(
    checkpoint: Path, record: Callable[..., Path], engine: str, dtype: str
) -> None:
    report = verify_trace(record(engine=engine, dtype=dtype, ids=PADDED, steps=2), checkpoint)
    assert report.verdict == "same", str(report)
    assert report.origins == ()
    assert dtype in report.dtype


def test_the_embedded_checkpoint_in_bfloat16(save: Callable[..., Path]) -> None:
    for engine in ("hf", "labkit"):
        recorded = record_trace(None, engine=engine, ids=[list(range(40, 60))], dtype="bfloat16")
        assert verify_trace(save(recorded.tensors, recorded.metadata)).verdict == "same"


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_float32_arithmetic_stored_narrower_passes(
    checkpoint: Path, clean: Recorded, save: Callable[..., Path], stored: torch.dtype
) -> None:
    tensors = {n: t.to(stored) if t.is_floating_point() else t for n, t in clean.tensors.items()}
    report = verify_trace(save(tensors, clean.metadata), checkpoint)
    assert report.verdict == "same", str(report)
    assert report.dtype == "float32"


@pytest.mark.parametrize("std", [0.001, 1e-5, 1.0])
@pytest.mark.parametrize(
    ("computed", "stored"),
    [("bfloat16", torch.float16), ("float16", torch.bfloat16), ("float64", torch.float16)],
    ids=str,
)
def test_what_the_stored_dtype_flushes_is_no_fault(
    std: float, computed: str, stored: torch.dtype, tmp_path: Path, save: Callable[..., Path]
) -> None:
    """float16 has more digits than bfloat16 and a shorter range: small values lose theirs in a trace of it."""
    random_checkpoint.write(tmp_path / "checkpoint", std=std)
    recorded = record_trace(tmp_path / "checkpoint", engine="labkit", ids=[list(range(20, 40))], dtype=computed)
    tensors = {n: t.to(stored) if t.is_floating_point() else t for n, t in recorded.tensors.items()}
    report = verify_trace(save(tensors, recorded.metadata), tmp_path / "checkpoint")
    assert report.verdict == "same", str(report)


@pytest.mark.parametrize(("computed", "advice"), [("bfloat16", "store"), ("float16", "compute")])
def test_an_overflow_is_told_by_name_with_what_to_widen(
    computed: str, advice: str, tmp_path: Path, save: Callable[..., Path]
) -> None:
    model = random_checkpoint.build(n_embd=64, n_head=1, n_layer=2, std=1.0)
    with torch.no_grad():
        model.transformer.h[0].mlp.c_proj.weight.mul_(900)
    model.save_pretrained(tmp_path / "checkpoint")
    recorded = record_trace(tmp_path / "checkpoint", engine="labkit", ids=[list(range(20, 40))], dtype=computed)
    tensors = {n: t.half() if t.is_floating_point() else t for n, t in recorded.tensors.items()}
    report = verify_trace(save(tensors, recorded.metadata), tmp_path / "checkpoint")
    assert report.verdict == "cannot tell"
    assert "is not finite from h.0.mlp.out on" in report.headline()
    (finding,) = report.findings
    assert "an overflow: it should be" in finding.text
    assert finding.next_step == f"{advice} in a dtype with a wider range there"


def test_storing_in_float16_is_no_softmax_in_float16(tmp_path: Path, save: Callable[..., Path]) -> None:
    """Rounding the recorded pattern is what that mistake would do: it is not taken for it."""
    fields = random_checkpoint.random_fields(3)
    random_checkpoint.write(tmp_path / "checkpoint", seed=3, **fields)
    recorded = record_trace(tmp_path / "checkpoint", engine="labkit", ids=[list(range(20, 32)), [5, 6, 7]], steps=2)
    tensors = {n: t.half() if t.is_floating_point() else t for n, t in recorded.tensors.items()}
    assert verify_trace(save(tensors, recorded.metadata), tmp_path / "checkpoint").verdict == "same"


def test_a_fault_shows_through_a_narrower_dtype(checkpoint: Path, save: Callable[..., Path]) -> None:
    recorded = record_trace(checkpoint, engine="labkit", ids=PADDED, plant=["qkv-order:1"])
    tensors = {n: t.bfloat16() if t.is_floating_point() else t for n, t in recorded.tensors.items()}
    report = verify_trace(save(tensors, recorded.metadata), checkpoint)
    assert report.origins[0] == "h.1.attn.q"
    assert report.findings[0].kind == "named"


def test_the_precision_is_the_one_declared(checkpoint: Path, record: Callable[..., Path]) -> None:
    """A bfloat16 run that calls itself float32 is beyond rounding from its first product on."""
    recorded = record_trace(checkpoint, engine="labkit", ids=PADDED, dtype="bfloat16")
    tensors = {n: t.float() if t.is_floating_point() else t for n, t in recorded.tensors.items()}
    from labkit.verification.trace import write_trace

    path = record()
    write_trace(path, tensors, replace(recorded.metadata, precision=Precision()))
    assert verify_trace(path, checkpoint).verdict == "differs"
    write_trace(path, tensors, recorded.metadata)
    assert verify_trace(path, checkpoint).verdict == "same"


def test_two_faults_in_two_blocks_are_both_named(checkpoint: Path, record: Callable[..., Path]) -> None:
    path = record(plant=["erf-gelu:0", "transpose-c_proj:2"])
    report = verify_trace(path, checkpoint)
    assert report.origins == ("h.0.mlp.post", "h.2.attn.out")
    assert report.first_divergence == "h.0.mlp.post"
    assert [finding.cause for finding in report.findings] == ["erf-gelu", "transpose-c_proj"]


def test_erf_gelu_in_bfloat16_from_a_trace(tmp_path: Path, save: Callable[..., Path]) -> None:
    """No element is beyond rounding; the pattern of errors over all of them tells, and the clean run passes."""
    folder = tmp_path / "checkpoint"
    random_checkpoint.write(folder, seed=2, n_embd=64, n_head=4)
    ids = torch.randint(97, (4, 32), generator=torch.Generator().manual_seed(0)).tolist()
    verdicts = {}
    for plant in ((), ("erf-gelu:1",)):
        recorded = record_trace(folder, engine="labkit", ids=ids, dtype="bfloat16", plant=plant)
        verdicts[plant] = verify_trace(save(recorded.tensors, recorded.metadata), folder)
    assert verdicts[()].verdict == "same"
    assert verdicts["erf-gelu:1",].origins == ("h.1.mlp.post",)
    assert [finding.cause for finding in verdicts["erf-gelu:1",].findings] == ["erf-gelu"]


def test_a_partial_trace_is_bisected(checkpoint: Path, record: Callable[..., Path]) -> None:
    """Following next_tap from residuals and logits alone comes down to the one faulty stage."""
    taps, suspects = ["h.*.resid_post", "logits"], []
    for _ in range(6):
        report = verify_trace(record(taps=taps, plant=["erf-gelu:1"]), checkpoint)
        assert report.verdict == "differs"
        if report.next_tap is None:
            break
        suspects.append(next(note for note in report.notes if report.next_tap in note))
        taps.append(report.next_tap)
    assert report.origins == ("h.1.mlp.post",)
    assert len(taps) <= 7, taps  # of 14 suspects, with five more dumps
    assert "lies in one of 14 stages after h.0.resid_post" in suspects[0]


def test_logits_alone_tell_that_something_is_wrong(checkpoint: Path, record: Callable[..., Path]) -> None:
    assert verify_trace(record(taps=["logits"]), checkpoint).verdict == "same"
    report = verify_trace(record(taps=["logits"], plant=["qkv-order:0"]), checkpoint)
    assert (report.origins, report.verdict) == (("logits",), "differs")
    assert "from the token ids on" in report.notes[-1]
    assert "it lies in one of 47 stages, too many to replay" in report.findings[0].text


def test_padding_is_left_out_and_padded_keys_attended_are_found(checkpoint: Path, save: Callable[..., Path]) -> None:
    recorded = record_trace(checkpoint, engine="labkit", ids=PADDED)
    spoiled = {n: t.clone() for n, t in recorded.tensors.items()}
    for tensor in spoiled.values():
        if tensor.dim() == 3 and tensor.is_floating_point():
            tensor[1, :5] = torch.nan  # rows of padding may hold anything
    assert verify_trace(save(spoiled, recorded.metadata), checkpoint).verdict == "same"
    unmasked = {n: t for n, t in recorded.tensors.items() if n != "attention_mask"}
    model = load_gpt2(checkpoint)
    taps = model.run(unmasked["input_ids"], taps="all", position_ids=unmasked["position_ids"]).taps
    report = verify_trace(save({**recorded.tensors, **taps}, recorded.metadata), checkpoint)
    assert report.origins == tuple(f"h.{i}.attn.pattern" for i in range(3))


class StaleCache(KVCache):
    """Keeps the first step's keys or values of one block where the second's belong."""

    block, which = 1, 0

    def extend(self, block: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As a cache that writes one entry to the wrong place."""
        at = self.length
        keys, values = super().extend(block, k, v)
        if block == self.block and k.shape[2] == 1 and at == 7:
            (keys, values)[self.which][:, :, 7] = (keys, values)[self.which][:, :, 6]
        return keys, values


def stale_trace(checkpoint: Path, which: int, *, full: bool) -> tuple[dict[str, Tensor], TraceMetadata]:
    """A decode with a stale entry; keys and values recorded as computed, or as the cache has them."""
    model = load_gpt2(checkpoint)
    cache = StaleCache(model.config, capacity=10)
    cache.which = which
    tensors: dict[str, Tensor] = {}
    for number, ids in enumerate([[[5, 17, 3, 96, 42, 7]], [[11]], [[2]], [[60]]]):
        prefix = f"step.{number - 1}." if number else ""
        taps = model.run(ids, taps="all", cache=cache).taps
        if full:
            for block in range(3):
                for place, letter in enumerate("kv"):
                    held = cache.table[2 * block + place][:, :, : cache.length]
                    taps[f"h.{block}.attn.{letter}"] = held.clone()
        tensors |= {prefix + "input_ids": torch.tensor(ids), **{prefix + n: t for n, t in taps.items()}}
    return tensors, TraceMetadata(engine="stale", config=model.config)


@pytest.mark.parametrize(("which", "origin"), [(0, "h.1.attn.scores"), (1, "h.1.attn.z")])
def test_a_stale_cache_entry_shows_where_it_is_used(
    checkpoint: Path, save: Callable[..., Path], which: int, origin: str
) -> None:
    report = verify_trace(save(*stale_trace(checkpoint, which, full=False)), checkpoint)
    assert report.origins == (origin,)
    place = next(stage for stage in report.stages if stage.name == origin).local_worst
    assert place[2] in (7, 8)
    assert "3 decode steps were judged as one sequence" in " ".join(report.notes)


def test_keys_recorded_as_the_cache_has_them(checkpoint: Path, save: Callable[..., Path]) -> None:
    """The stale entry is then seen in the cache itself as well."""
    tensors, metadata = stale_trace(checkpoint, 0, full=True)
    report = verify_trace(save(tensors, metadata), checkpoint)
    assert "h.1.attn.k" in report.origins
    healthy = {n: t for n, t in tensors.items() if not n.startswith(("step.1.", "step.2."))}
    assert verify_trace(save(healthy, metadata), checkpoint).verdict == "same"


def test_a_later_change_of_a_cached_key_is_told(checkpoint: Path, save: Callable[..., Path]) -> None:
    tensors, metadata = stale_trace(checkpoint, 0, full=True)
    tensors["step.2.h.0.attn.v"] = tensors["step.2.h.0.attn.v"].clone()
    tensors["step.2.h.0.attn.v"][0, 0, 2] += 1
    report = verify_trace(save(tensors, metadata), checkpoint)
    assert any("step.2.h.0.attn.v holds another value at position 2" in note for note in report.notes)


def test_positions_by_row_and_wpe_by_row(checkpoint: Path, clean: Recorded, save: Callable[..., Path]) -> None:
    tensors = {n: t for n, t in clean.tensors.items() if not n.startswith("step.")}
    by_row = {**tensors, "wpe": tensors["wpe"].expand(2, 6, 20)}
    assert verify_trace(save(by_row, clean.metadata), checkpoint).verdict == "same"
    shifted = {**tensors, "position_ids": torch.arange(6)[None] + 1}
    assert verify_trace(save(shifted, clean.metadata), checkpoint).first_divergence == "wpe"


def test_the_ids_of_decode_steps_are_the_truths_first_choices(checkpoint: Path, record: Callable[..., Path]) -> None:
    for ids in (IDS, PADDED):
        report = verify_trace(record(ids=ids, steps=3, taps=["logits"]), checkpoint)
        assert [(each.verdict, each.actual) for each in report.tokens] == [
            ("same", each.expected) for each in report.tokens
        ]
        assert [len(each.actual) for each in report.tokens] == [3, 3]
        assert "not greedy" not in " ".join(report.notes)


def test_padding_counts_in_no_figure_of_the_logits(checkpoint: Path, record: Callable[..., Path]) -> None:
    """What an engine computes at padding means nothing: here two engines differ there by whole logits."""
    for engine in ("hf", "labkit"):
        agreement = verify_trace(record(engine=engine, ids=PADDED, steps=3), checkpoint).agreement
        assert agreement is not None
        assert (agreement.pearson, agreement.top_1, agreement.top_5) == (pytest.approx(1, abs=1e-11), 1.0, 1.0)
        assert agreement.kl_max < 1e-9


@pytest.mark.parametrize("step", [0, 2])
def test_an_id_that_is_not_the_first_choice_is_told(checkpoint: Path, save: Callable[..., Path], step: int) -> None:
    """The second row of the batch takes its second choice in one step; all taps are right for the ids given."""
    model, rows = load_gpt2(checkpoint), torch.tensor(IDS)  # [batch, pos]
    for number in range(3):
        ranked = model(rows)[:, -1].topk(2).indices  # [batch, 2]
        rows = torch.cat([rows, torch.stack([ranked[0, 0], ranked[1, int(number == step)]])[:, None]], dim=1)
    logits, prompt = model(rows), len(IDS[0])
    tensors = {"input_ids": rows[:, :prompt], "logits": logits[:, :prompt]}
    for number in range(3):
        at = slice(prompt + number, prompt + number + 1)
        tensors |= {f"step.{number}.input_ids": rows[:, at], f"step.{number}.logits": logits[:, at]}
    metadata = record_trace(checkpoint, engine="labkit", ids=IDS).metadata
    report = verify_trace(save(tensors, metadata), checkpoint)
    assert report.verdict == "same", str(report)
    assert [each.actual for each in report.tokens] == [tuple(rows[0, prompt:].tolist())]
    told = [note for note in report.notes if "not greedy" in note]
    assert len(told) == 1
    assert told[0].startswith(f"prompt 2: position {prompt + step} was given id {int(rows[1, prompt + step])}, ")


def test_another_models_trace_is_refused(clean: Recorded, checkpoint: Path, save: Callable[..., Path]) -> None:
    other = replace(clean.metadata, config=replace(clean.metadata.config, vocab_size=99))
    with pytest.raises(TraceError, match="of another model: vocab_size is 99 in the trace's config and 97"):
        verify_trace(save(clean.tensors, other), checkpoint)


def test_notes_say_what_else_the_file_tells(clean: Recorded, checkpoint: Path, save: Callable[..., Path]) -> None:
    config = replace(clean.metadata.config, layer_norm_epsilon=1e-6)
    metadata = replace(clean.metadata, config=config, weights_sha256="0" * 64)
    tensors = {**clean.tensors, "h.0.mlp.act": torch.ones(2), "extra": torch.ones(1)}
    del tensors["step.1.h.2.mlp.out"]
    text = " ".join(verify_trace(save(tensors, metadata), checkpoint).notes)
    assert "layer_norm_epsilon is 1e-06 in the trace" in text
    assert "made with other weights" in text
    assert "no taps: extra, h.0.mlp.act" in text
    assert "not every pass recorded them: h.2.mlp.out" in text


def test_a_value_that_is_not_finite_comes_first(clean: Recorded, checkpoint: Path, save: Callable[..., Path]) -> None:
    broken = clean.tensors["h.1.mlp.pre"].clone()
    broken[0, 2, 3] = torch.inf
    report = verify_trace(save({**clean.tensors, "h.1.mlp.pre": broken}, clean.metadata), checkpoint)
    stage = next(each for each in report.stages if each.name == "h.1.mlp.pre")
    assert (stage.cause, stage.worst) == ("non-finite", (0, 2, 3))


def test_on_the_command_line(
    checkpoint: Path, record: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import json

    path = record(plant=["no-mask:1"])
    assert run(["verify", str(checkpoint), "--trace", str(path), "--json", "-"]) == 1
    fields = json.loads(capsys.readouterr().out)
    assert fields["origins"] == ["h.1.attn.pattern"]
    assert fields["engine"] == "labkit with no-mask:1 planted"
    assert run(["verify", str(checkpoint), "--trace", str(record())]) == 0
    assert run(["verify", str(checkpoint), "--trace", str(path), "--prompt", "x"]) == 2
    assert run(["verify", str(checkpoint), "--trace", str(checkpoint / "model.safetensors")]) == 2
    assert "'format' has a value that labkit does not know" in capsys.readouterr().err
