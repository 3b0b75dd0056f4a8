"""A config of another model than the tensors, or the checkpoint: one line that says both numbers; inputs of other dtypes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from labkit.cli.main import run
from labkit.errors import TraceError
from labkit.verification.lint import lint_trace
from labkit.verification.trace_record import Recorded, record_trace
from labkit.verification.verify_trace import verify_trace
from tests.oracles.random_checkpoint import write
from tests.verification.trace.conftest import IDS

OWN = "write the checkpoint's own config.json"
Save = Callable[..., Path]


@pytest.fixture(scope="module")
def single(checkpoint: Path) -> Recorded:
    return record_trace(checkpoint, engine="labkit", ids=IDS)


def stated(recorded: Recorded, **fields: Any) -> Any:
    return replace(recorded.metadata, config=replace(recorded.metadata.config, **fields))


@pytest.mark.parametrize(
    ("field", "value", "true", "shown"),
    [
        ("n_layer", 2, 3, "blocks up to 2 are recorded (h.2.attn.k)"),
        ("n_head", 4, 5, "the tensors have 5 (h.0.attn.q is [2, 5, 6, 4])"),
        ("vocab_size", 98, 97, "the tensors have 97 (logits is [2, 6, 97])"),
        ("n_inner", 81, 80, "the tensors have 80 (h.0.mlp.pre is [2, 6, 80])"),
    ],
)
def test_a_config_that_the_tensors_do_not_have(
    checkpoint: Path, single: Recorded, save: Save, field: str, value: int, true: int, shown: str
) -> None:
    """Not a list of missing or misshapen taps: both numbers, what was compared, and the one thing to do."""
    path = save(single.tensors, stated(single, **{field: value}))
    told = f"{field} is {value} in the trace's config and {true} in the checkpoint; {shown}"
    with pytest.raises(TraceError) as caught:
        verify_trace(path, checkpoint)
    assert caught.value.what == f"the trace is of another model: {told}"
    assert caught.value.fix == OWN
    assert [str(each) for each in lint_trace(path, checkpoint).defects] == [f"[metadata] {told}; {OWN}"]
    alone = f"[metadata] {field} is {value} in the trace's config, but {shown}; {OWN}"
    assert [str(each) for each in lint_trace(path).defects] == [alone]


def test_more_blocks_stated_than_recorded(checkpoint: Path, single: Recorded, save: Save) -> None:
    """It may be a partial trace, so lint says what is there, and the checkpoint decides."""
    path = save(single.tensors, stated(single, n_layer=5))
    with pytest.raises(TraceError, match="n_layer is 5 in the trace's config and 3 in the checkpoint; write"):
        verify_trace(path, checkpoint)
    (defect,) = lint_trace(path).defects
    assert (defect.code, defect.tensor) == ("missing", "h.3.*")
    assert "n_layer = 5, but of 3 blocks alone (0 to 2)" in defect.what


def test_a_trace_of_another_model(
    checkpoint: Path, single: Recorded, save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its own config or with the checkpoint's: every size in one line, and exit code 2."""
    write(tmp_path / "other", n_layer=4, n_head=4, n_embd=32, vocab_size=120)
    other = record_trace(tmp_path / "other", engine="labkit", ids=IDS)
    for metadata, told in (
        (other.metadata, "n_embd is 32 in the trace's config and 20 in the checkpoint; n_layer is 4"),
        (
            single.metadata,
            "n_embd is 20 in the trace's config and in the checkpoint, but the tensors have 32 (wte is [2, 6, 32])",
        ),
    ):
        path = save(other.tensors, metadata)
        assert run(["verify", str(checkpoint), "--trace", str(path)]) == 2
        (line,) = (each for each in capsys.readouterr().err.splitlines() if each.startswith("labkit:"))
        assert told in line
        assert line.endswith("; give its own checkpoint, or look at where your engine takes its sizes")
        defects = lint_trace(path, checkpoint).defects
        assert [each.what.partition(" ")[0] for each in defects] == [
            "vocab_size",
            "n_embd",
            "n_layer",
            "n_head",
            "n_inner",
        ]


def test_another_order_of_axes_is_no_other_size(checkpoint: Path, single: Recorded, save: Save) -> None:
    turned = {
        name: tensor.transpose(1, 2).contiguous() if name.endswith((".q", ".k", ".v", ".z")) else tensor
        for name, tensor in single.tensors.items()
    }
    assert {each.code for each in lint_trace(save(turned, single.metadata)).defects} == {"shape"}
    with pytest.raises(TraceError, match=r"transpose axes 1 and 2, to \[batch, head, pos, head_dim\]"):
        verify_trace(save(turned, single.metadata), checkpoint)


@pytest.mark.parametrize("name", ["input_ids", "attention_mask", "position_ids"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64"])
def test_inputs_of_other_whole_numbers_are_read_and_told(checkpoint: Path, save: Save, name: str, dtype: str) -> None:
    """verify and lint-trace in the same words; nothing else is held against the trace for it."""
    recorded = record_trace(checkpoint, engine="labkit", ids=[[5, 17, 3, 96], [11, 2]])
    tensors = {**recorded.tensors, name: recorded.tensors[name].to(getattr(torch, dtype))}
    path = save(tensors, recorded.metadata)
    code = dtype.upper().replace("UINT", "U").replace("INT", "I")
    told = f"stored as {code}, where the contract has I64"
    report = verify_trace(path, checkpoint)
    assert report.verdict == "same"
    assert f"{name}: {told}; read as if it were" in report.notes
    lint = lint_trace(path, checkpoint)
    assert [str(each) for each in lint.defects] == [f"[dtype] {name}: {told}; store I64"]
    assert not any("cannot be used" in note for note in lint.notes)


def test_a_mask_of_truth_values_is_read_and_ids_of_them_are_refused(checkpoint: Path, save: Save) -> None:
    recorded = record_trace(checkpoint, engine="labkit", ids=[[5, 17, 3, 96], [11, 2]])
    tensors = {**recorded.tensors, "attention_mask": recorded.tensors["attention_mask"].bool()}
    assert verify_trace(save(tensors, recorded.metadata), checkpoint).verdict == "same"
    for name in ("input_ids", "position_ids"):
        path = save({**recorded.tensors, name: recorded.tensors[name].bool()}, recorded.metadata)
        with pytest.raises(TraceError, match=r"not whole numbers \(expected I64, got BOOL\); store I64"):
            verify_trace(path, checkpoint)


@pytest.mark.parametrize("name", ["input_ids", "attention_mask", "position_ids"])
def test_inputs_of_other_numbers_are_refused_in_one_line(checkpoint: Path, save: Save, name: str) -> None:
    recorded = record_trace(checkpoint, engine="labkit", ids=[[5, 17, 3, 96], [11, 2]])
    path = save({**recorded.tensors, name: recorded.tensors[name].float()}, recorded.metadata)
    with pytest.raises(TraceError, match=r"not whole numbers \(expected I64, got F32\); store I64"):
        verify_trace(path, checkpoint)
    (defect,) = lint_trace(path).defects
    assert str(defect) == f"[inputs] {name}: not whole numbers (expected I64, got F32); store I64"


def test_an_id_beyond_what_i64_holds_is_told_as_it_is(checkpoint: Path, save: Save) -> None:
    recorded = record_trace(checkpoint, engine="labkit", ids=[[5, 17, 3, 96]])
    ids = torch.tensor([[5, 17, 3, -1]]).to(torch.uint64)
    path = save({**recorded.tensors, "input_ids": ids}, recorded.metadata)
    with pytest.raises(TraceError, match=r"a number that I64 does not hold \(got 18446744073709551615\)"):
        verify_trace(path, checkpoint)


@pytest.mark.parametrize("part", [slice(-1, None), -1])
def test_logits_of_the_last_position_alone(checkpoint: Path, single: Recorded, save: Save, part: slice | int) -> None:
    path = save({**single.tensors, "logits": single.tensors["logits"][:, part].contiguous()}, single.metadata)
    told = "record the logits of every position, not of the last alone"
    with pytest.raises(TraceError, match=told):
        verify_trace(path, checkpoint)
    assert [each.fix for each in lint_trace(path).defects] == [told]
