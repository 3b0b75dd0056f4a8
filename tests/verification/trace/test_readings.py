"""A right engine whose trace is wrong: what the trace says of itself, or how it was recorded, is named as the cause."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from labkit.load import load_gpt2
from labkit.model import GPT2
from labkit.verification.faults import plant_all
from labkit.verification.lint import lint_trace
from labkit.verification.precision import Precision
from labkit.verification.readings import READINGS
from labkit.verification.report import Report
from labkit.verification.trace_record import Recorded, record_trace
from labkit.verification.verify_trace import verify_trace
from tests.oracles.random_checkpoint import write
from tests.verification.trace.conftest import IDS

PADDED = [[5, 17, 3, 96, 42, 7, 80, 9], [11, 2, 8]]
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


def causes(report: Report) -> list[tuple[str, str | None]]:
    return [(finding.where, finding.cause) for finding in report.findings]


def with_weights(checkpoint: Path, dtype: torch.dtype) -> GPT2:
    """The engine in float32 arithmetic on weights that were rounded to ``dtype``."""
    model = load_gpt2(checkpoint)
    return GPT2(model.config, {name: p.to(dtype).float() for name, p in model.parameters_by_name.items()})


def taps_of(model: GPT2, *names: str) -> dict[str, Tensor]:
    taps = model.run(IDS, taps="all").taps
    return {"input_ids": torch.tensor(IDS), **{n: t for n, t in taps.items() if not names or n in names}}


@pytest.fixture(scope="module")
def single(checkpoint: Path) -> Recorded:
    return record_trace(checkpoint, engine="labkit", ids=IDS)


@pytest.mark.parametrize("taps", ["all", ["logits"], ["h.*.resid_post", "logits"]])
def test_positions_that_count_tokens_and_are_not_written(
    checkpoint: Path, save: Callable[..., Path], taps: str | list[str]
) -> None:
    """The engine is right; without position_ids its rows of wpe are not those that the trace asks for."""
    recorded = record_trace(checkpoint, engine="hf", ids=PADDED, taps=taps)
    assert verify_trace(save(recorded.tensors, recorded.metadata), checkpoint).verdict == "same"
    del recorded.tensors["position_ids"]
    report = verify_trace(save(recorded.tensors, recorded.metadata), checkpoint)
    assert [cause for _, cause in causes(report)] == ["positions-unstated"]
    assert "the trace states no position_ids" in report.findings[0].text
    assert "write the position_ids" in report.findings[0].next_step
    assert not any("padding stands before" in note for note in report.notes)


@pytest.mark.parametrize("taps", ["all", ["logits"]])
def test_positions_that_count_padding(checkpoint: Path, save: Callable[..., Path], taps: str | list[str]) -> None:
    """Against stated position_ids it is a mistake; without them the contract lets it, and verify and lint say so."""
    recorded = record_trace(checkpoint, engine="labkit", ids=PADDED, taps=taps, plant=["positions-ignore-padding"])
    report = verify_trace(save(recorded.tensors, recorded.metadata), checkpoint)
    assert [cause for _, cause in causes(report)] == ["positions-ignore-padding"]
    assert report.findings[0].kind == "named"
    del recorded.tensors["position_ids"]
    path = save(recorded.tensors, recorded.metadata)
    report = verify_trace(path, checkpoint)
    assert report.verdict == "same"
    for notes in (report.notes, lint_trace(path).notes):
        [note] = [note for note in notes if "padding" in note]
        assert note.startswith("padding stands before the tokens of row 1")
        assert note.endswith("(positions-ignore-padding)")


def test_padding_on_the_right_is_no_matter(checkpoint: Path, save: Callable[..., Path]) -> None:
    mask = torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]])
    taps = load_gpt2(checkpoint).run(IDS, taps="all", attention_mask=mask).taps
    tensors = {"input_ids": torch.tensor(IDS), "attention_mask": mask, **taps}
    recorded = record_trace(checkpoint, engine="labkit", ids=IDS)
    report = verify_trace(save(tensors, recorded.metadata), checkpoint)
    assert (report.verdict, [note for note in report.notes if "padding" in note]) == ("same", [])


@pytest.mark.parametrize(("held", "declared"), [(BF16, F32), (F16, F32), (F32, BF16), (F32, F16), (F16, BF16)])
@pytest.mark.parametrize("taps", [(), ("wte", "h.2.resid_post"), ("logits",)])
def test_weights_in_another_dtype_than_declared(
    checkpoint: Path,
    single: Recorded,
    save: Callable[..., Path],
    held: torch.dtype,
    declared: torch.dtype,
    taps: tuple[str, ...],
) -> None:
    tensors = taps_of(with_weights(checkpoint, held), *taps)
    for stated, wanted in ((held, []), (declared, ["weight_dtype"])):
        path = save(tensors, replace(single.metadata, precision=Precision(weight=stated)))
        report = verify_trace(path, checkpoint)
        assert [cause for _, cause in causes(report)] == wanted
        assert report.verdict == ("differs" if wanted else "same")
        names = [str(dtype).removeprefix("torch.") for dtype in (declared, held)]
        told = f"the trace declares weight_dtype {names[0]}; its values are those of weights in {names[1]}"
        assert wanted == [] or told in report.findings[0].text
        assert "also wrong" not in report.headline()
        found = [each for each in lint_trace(path, checkpoint).defects if each.code == "precision"]
        assert len(found) == (1 if wanted and "wte" in tensors else 0) + (
            1 if wanted and declared != F32 and not taps else 0
        ), found


def test_lint_without_a_checkpoint_tells_values_that_the_declared_dtype_does_not_hold(
    single: Recorded, save: Callable[..., Path]
) -> None:
    declared = replace(single.metadata, precision=Precision(weight=BF16))
    found = [str(each) for each in lint_trace(save(single.tensors, declared)).defects]
    assert [each.split(",")[0] for each in found] == [
        "[precision] wte: weight_dtype says bfloat16",
        "[precision] wpe: weight_dtype says bfloat16",
    ]


def test_other_mistakes_stay_beside_the_weights(checkpoint: Path, single: Recorded, save: Callable[..., Path]) -> None:
    model = plant_all(with_weights(checkpoint, BF16), ["erf-gelu:1"])
    report = verify_trace(save(taps_of(model), single.metadata), checkpoint)
    assert causes(report) == [("wte", "weight_dtype"), ("h.1.mlp.post", "erf-gelu")]
    assert report.headline().endswith("; also wrong by themselves: h.1.mlp.post")


def test_one_matrix_that_is_rounded_is_not_the_declaration(
    checkpoint: Path, single: Recorded, save: Callable[..., Path]
) -> None:
    model = plant_all(load_gpt2(checkpoint), ["bfloat16-weights-mlp.c_fc:1"])
    report = verify_trace(save(taps_of(model), single.metadata), checkpoint)
    assert causes(report) == [("h.1.mlp.pre", "bfloat16-weights-mlp.c_fc")]


@pytest.mark.parametrize("stored", [F32, BF16])
def test_arithmetic_in_another_dtype_than_declared(
    checkpoint: Path, save: Callable[..., Path], stored: torch.dtype
) -> None:
    recorded = record_trace(checkpoint, engine="labkit", ids=IDS, dtype="bfloat16")
    tensors = {n: t.to(stored) if t.is_floating_point() else t for n, t in recorded.tensors.items()}
    report = verify_trace(save(tensors, replace(recorded.metadata, precision=Precision())), checkpoint)
    assert [cause for _, cause in causes(report)] == ["compute_dtype"]
    assert "the trace declares compute_dtype float32; its values are those of bfloat16" in report.findings[0].text
    assert "write compute_dtype bfloat16 and weight_dtype bfloat16" in report.findings[0].next_step


@pytest.mark.parametrize(("tap", "of"), [("h.0.attn.k", "h.0.attn.q"), ("h.0.attn.q", "h.0.attn.k")])
def test_a_buffer_recorded_twice(
    checkpoint: Path, single: Recorded, save: Callable[..., Path], tap: str, of: str
) -> None:
    report = verify_trace(save({**single.tensors, tap: single.tensors[of].clone()}, single.metadata), checkpoint)
    [finding] = report.findings
    assert f"{tap} is byte for byte {of}: recorded twice? (so h.0.attn.scores differs too)" in finding.text
    assert "copy each buffer" in finding.next_step
    assert report.origins[0] == tap
    assert "also wrong" not in report.headline()


def test_a_residual_stream_that_was_changed_in_place(
    checkpoint: Path, single: Recorded, save: Callable[..., Path]
) -> None:
    last = single.tensors["h.2.resid_post"]
    stream = {name: last.clone() for name in single.tensors if name == "embed" or "resid" in name}
    report = verify_trace(save({**single.tensors, **stream}, single.metadata), checkpoint)
    assert causes(report) == [("embed", "recorded-twice")]
    assert "byte for byte h.2.resid_post" in report.findings[0].text


def test_one_buffer_that_is_also_used_for_both(checkpoint: Path, single: Recorded, save: Callable[..., Path]) -> None:
    """The scores were computed from the copy, so it is the engine that is wrong and not its trace."""
    model = load_gpt2(checkpoint)
    parameters = dict(model.parameters_by_name)
    for name in ("h.0.attn.c_attn.weight", "h.0.attn.c_attn.bias"):
        q, _, v = parameters[name].chunk(3, dim=-1)
        parameters[name] = torch.cat([q, q, v], dim=-1)
    report = verify_trace(save(taps_of(GPT2(model.config, parameters)), single.metadata), checkpoint)
    assert causes(report) == [("h.0.attn.k", "one-buffer")]
    assert "h.0.attn.k is byte for byte h.0.attn.q, and what follows was computed from it" in report.findings[0].text


def test_a_buffer_that_was_never_written(checkpoint: Path, single: Recorded, save: Callable[..., Path]) -> None:
    empty = torch.zeros_like(single.tensors["h.1.attn.v"])
    report = verify_trace(save({**single.tensors, "h.1.attn.v": empty}, single.metadata), checkpoint)
    assert causes(report) == [("h.1.attn.v", "never-written")]


def test_a_step_that_was_not_recorded_anew(checkpoint: Path, clean: Recorded, save: Callable[..., Path]) -> None:
    tensors = {**clean.tensors, "step.1.h.1.mlp.pre": clean.tensors["step.0.h.1.mlp.pre"].clone()}
    report = verify_trace(save(tensors, clean.metadata), checkpoint)
    assert causes(report) == [("h.1.mlp.pre", "recorded-once")]
    assert "step.1.h.1.mlp.pre is byte for byte step.0.h.1.mlp.pre" in report.findings[0].text


def test_axes_in_another_order(checkpoint: Path, single: Recorded, save: Callable[..., Path]) -> None:
    pattern = single.tensors["h.1.attn.pattern"].transpose(2, 3).contiguous()
    report = verify_trace(save({**single.tensors, "h.1.attn.pattern": pattern}, single.metadata), checkpoint)
    assert causes(report) == [("h.1.attn.pattern", "axes-reordered")]
    assert "[batch, head, pos_k, pos_q] in place of [batch, head, pos_q, pos_k]" in report.findings[0].text
    assert report.findings[0].next_step == "transpose axes 2 and 3 before recording"


def test_two_slips_of_a_recorder_beside_a_mistake(checkpoint: Path, save: Callable[..., Path]) -> None:
    recorded = record_trace(checkpoint, engine="labkit", ids=IDS, plant=["erf-gelu:2"])
    tensors = dict(recorded.tensors)
    tensors |= {"h.0.attn.k": tensors["h.0.attn.q"].clone(), "h.1.attn.v": torch.zeros_like(tensors["h.1.attn.v"])}
    report = verify_trace(save(tensors, recorded.metadata), checkpoint)
    assert causes(report) == [
        ("h.0.attn.k", "recorded-twice"),
        ("h.1.attn.v", "never-written"),
        ("h.2.mlp.post", "erf-gelu"),
    ]


def test_an_unknown_mistake_stays_unknown(checkpoint: Path, single: Recorded, save: Callable[..., Path]) -> None:
    """Noise of one part in a hundred is no reading of anything."""
    model = load_gpt2(checkpoint)
    noise = 0.01 * torch.randn(2, 6, 20, generator=torch.Generator().manual_seed(2))
    taps = model.run(IDS, taps="all", replace={"h.1.mlp.out": lambda value: value + noise}).taps
    report = verify_trace(save({"input_ids": torch.tensor(IDS), **taps}, single.metadata), checkpoint)
    assert [finding.kind for finding in report.findings if finding.where == "h.1.mlp.out"] == ["unknown"]
    assert not {finding.cause for finding in report.findings} & {*READINGS}


def test_no_reading_is_taken_for_another_engines_faults(tmp_path: Path, save: Callable[..., Path]) -> None:
    """Every kind of planted mistake, in a trace of few taps where causes are hard to tell: none becomes a reading."""
    folder = tmp_path / "checkpoint"
    write(folder, seed=11)
    for fault in ("qkv-order:1", "transpose-c_proj:0", "no-mask:2", "wpe-missing", "logits-scaled", "erf-gelu:0"):
        recorded = record_trace(
            folder, engine="labkit", ids=PADDED, plant=[fault], taps=["embed", "h.*.resid_post", "logits"]
        )
        report = verify_trace(save(recorded.tensors, recorded.metadata), folder)
        assert report.verdict == "differs"
        assert not {finding.cause for finding in report.findings} & {*READINGS}, fault


def test_padding_without_its_mask(checkpoint: Path, save: Callable[..., Path]) -> None:
    """With positions that show it, and without; transformers takes no row of such positions for several texts."""
    recorded = record_trace(checkpoint, engine="labkit", ids=PADDED)
    for left_out, more in ((["attention_mask"], ""), (["attention_mask", "position_ids"], ", and position_ids")):
        tensors = {name: tensor for name, tensor in recorded.tensors.items() if name not in left_out}
        report = verify_trace(save(tensors, recorded.metadata), checkpoint)
        assert report.verdict == "differs", report.headline()
        (finding,) = report.findings
        assert finding.cause == "mask-unstated"
        assert "padding before the tokens of row 1" in finding.text
        assert finding.next_step.startswith(f"write attention_mask [batch, pos], 0 where padding{more}")


def test_rows_of_other_ids_and_positions(checkpoint: Path, single: Recorded, save: Callable[..., Path]) -> None:
    ids = single.tensors["input_ids"].roll(1, dims=1)
    report = verify_trace(save({**single.tensors, "input_ids": ids}, single.metadata), checkpoint)
    assert causes(report) == [("wte", "other-ids")]
    assert "at [0, 0] that of 5, not 7" in report.findings[0].text
    positions = torch.tensor([[0, 1, 2, 3, 4, 0], [0, 1, 2, 3, 4, 5]])
    taps = load_gpt2(checkpoint).run(IDS, taps="all", position_ids=positions).taps
    report = verify_trace(save({"input_ids": torch.tensor(IDS), **taps}, single.metadata), checkpoint)
    assert causes(report) == [("wpe", "other-positions")]
    assert "at [0, 5] that of 0, not 5" in report.findings[0].text


def test_another_checkpoint_of_the_same_sizes(checkpoint: Path, tmp_path: Path, save: Callable[..., Path]) -> None:
    write(tmp_path / "sibling", seed=99, n_head=5, n_embd=20)
    other = record_trace(tmp_path / "sibling", engine="labkit", ids=IDS)
    report = verify_trace(save(other.tensors, other.metadata), checkpoint)
    assert causes(report) == [("wte", "other-weights")]
    assert "also wrong" not in report.headline()


def test_a_tap_that_was_recorded_at_another_place(
    checkpoint: Path, single: Recorded, save: Callable[..., Path]
) -> None:
    """Scores before they are scaled, and the stream under the name of its norm: what follows used neither."""
    scores = single.tensors["h.1.attn.scores"] * 2
    report = verify_trace(save({**single.tensors, "h.1.attn.scores": scores}, single.metadata), checkpoint)
    assert causes(report) == [("h.1.attn.scores", "recorded-elsewhere")]
    assert "h.1.attn.pattern was not computed from what h.1.attn.scores holds" in report.findings[0].text
    moved = single.tensors["h.2.mlp.post"] + 1
    report = verify_trace(save({**single.tensors, "h.2.mlp.post": moved}, single.metadata), checkpoint)
    assert causes(report) == [("h.2.mlp.post", "recorded-elsewhere")]


def test_what_is_no_tap_is_told_where_nothing_else_is_there(
    checkpoint: Path, single: Recorded, save: Callable[..., Path]
) -> None:
    from labkit.errors import TraceError

    tensors = {"input_ids": single.tensors["input_ids"], "transformer.wte": single.tensors["wte"]}
    with pytest.raises(TraceError, match=r"transformer\.wte are no taps: labkit lint-trace says what to call them"):
        verify_trace(save(tensors, single.metadata), checkpoint)
    tensors = {**single.tensors, "h.00.ln_2": single.tensors["h.0.ln_2"]}
    (defect,) = [each for each in lint_trace(save(tensors, single.metadata)).defects if each.code == "extra"]
    assert defect.fix is not None
    assert defect.fix.startswith("did you mean h.0.ln_2")
    with pytest.raises(TraceError, match=r"write a batch of one, \[1, pos\], and every tap with its batch axis"):
        verify_trace(save({**single.tensors, "input_ids": torch.tensor(IDS[0])}, single.metadata), checkpoint)
