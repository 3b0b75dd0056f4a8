"""Each defect made on purpose, and reported as that defect and no other."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from labkit.cli.main import run
from labkit.errors import FormatError
from labkit.storage import save_safetensors
from labkit.verification.lint import lint_trace
from labkit.verification.lint_defects import CODES, LintReport
from labkit.verification.precision import Precision
from labkit.verification.trace_record import Recorded, record_trace

Edit = Callable[[dict[str, Tensor]], object]


@pytest.fixture
def lint(clean: Recorded, checkpoint: Path, save: Callable[..., Path]) -> Callable[..., LintReport]:
    """Lint the clean trace after an edit of its tensors."""

    def edited(edit: Edit, *, with_model: bool = False) -> LintReport:
        tensors = dict(clean.tensors)
        edit(tensors)
        return lint_trace(save(tensors, clean.metadata), checkpoint if with_model else None)

    return edited


def put(name: str, change: Callable[[Tensor], Tensor]) -> Edit:
    return lambda tensors: tensors.update({name: change(tensors[name])})


def spoiled(value: float, *at: int) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        copy = tensor.clone()
        copy[at] = value
        return copy

    return change


def test_clean_traces_of_both_engines_have_no_defect(checkpoint: Path, save: Callable[..., Path]) -> None:
    for engine in ("hf", "labkit"):
        for options in ({"steps": 3}, {"dtype": "bfloat16"}, {"ids": [[4]]}, {"ids": [[4, 5, 6], [7]], "steps": 1}):
            recorded = record_trace(checkpoint, **{"engine": engine, "ids": [[5, 6, 7, 8, 9]], **options})
            report = lint_trace(save(recorded.tensors, recorded.metadata), checkpoint)
            assert report.defects == (), (engine, options)
            assert report.return_code == 0


DEFECTS: dict[str, tuple[Edit, str, str | None, str]] = {
    "renamed": (
        lambda t: t.update({"h.0.ln1": t.pop("h.0.ln_1")}),
        "extra",
        "h.0.ln1",
        "did you mean h.0.ln_1",
    ),
    "module's name": (
        lambda t: t.update({"transformer.h.1.mlp.c_fc": t["h.1.mlp.pre"] + 1}),
        "extra",
        "transformer.h.1.mlp.c_fc",
        "recorded as h.1.mlp.pre",
    ),
    "block too many": (
        lambda t: t.update({"h.3.ln_1": t["h.2.ln_1"] + 1}),
        "extra",
        "h.3.ln_1",
        "blocks 0 to 2",
    ),
    "dropped": (lambda t: t.pop("h.1.mlp.post"), "missing", "h.1.mlp.post", "not recorded"),
    "dropped in a step": (lambda t: t.pop("step.1.h.0.attn.z"), "missing", "step.1.h.0.attn.z", "not recorded"),
    "logits dropped": (lambda t: [t.pop(n) for n in list(t) if n.endswith("logits")], "missing", "logits", ""),
    "stale": (
        lambda t: t.update({"step.1.h.2.resid_mid": t["step.0.h.2.resid_mid"]}),
        "stale",
        "step.1.h.2.resid_mid",
        "the same as step.0.h.2.resid_mid",
    ),
    "aliased by a sum in place": (
        lambda t: t.update({"wte": t["embed"]}),
        "aliased",
        "embed",
        "the same as wte",
    ),
    "aliased between blocks": (
        lambda t: t.update({"h.0.attn.out": t["h.1.attn.out"]}),
        "aliased",
        "h.1.attn.out",
        "the same as h.0.attn.out",
    ),
    "NaN": (put("h.1.ln_2", spoiled(torch.nan, 1, 3, 4)), "non-finite", "h.1.ln_2", "the first at [1, 3, 4]"),
    "infinite score": (
        put("h.1.attn.scores", spoiled(torch.inf, 0, 2, 4, 1)),
        "non-finite",
        "h.1.attn.scores",
        "the first at [0, 2, 4, 1]",
    ),
    "never written": (put("h.0.mlp.out", torch.zeros_like), "unwritten", "h.0.mlp.out", "every element is zero"),
    "transposed": (
        put("h.0.attn.k", lambda x: x.transpose(1, 2).contiguous()),
        "shape",
        "h.0.attn.k",
        "transpose axes 1 and 2",
    ),
    "merged": (put("h.0.attn.z", lambda x: x.transpose(1, 2).flatten(2)), "shape", "h.0.attn.z", "reshape it to [2, 6"),
    "without its batch axis": (put("ln_f", lambda x: x[0]), "shape", "ln_f", "no transpose or reshape"),
    "rows run together": (put("ln_f", lambda x: x.flatten(0, 1)), "shape", "ln_f", "reshape it to [2, 6, 20]"),
    "last position only": (
        put("logits", lambda x: x[:, -1:]),
        "shape",
        "logits",
        "record the logits of every position",
    ),
    "whole numbers": (put("h.2.mlp.pre", lambda x: x.long() + 7), "dtype", "h.2.mlp.pre", "may not be I64"),
    "short ids": (put("input_ids", lambda x: x.int()), "dtype", "input_ids", "store I64"),
    "pattern leaks": (
        put("h.1.attn.pattern", spoiled(1e-30, 1, 2, 0, 3)),
        "future",
        "h.1.attn.pattern",
        "first [1, 2, 0, 3]",
    ),
    "pattern transposed": (
        put("h.1.attn.pattern", lambda x: x.mT.contiguous()),
        "layout",
        "h.1.attn.pattern",
        "transpose axes 2 and 3",
    ),
    "ids out of range": (put("input_ids", lambda x: x + 96), "inputs", "input_ids", "beyond the vocabulary"),
    "no ids": (lambda t: t.pop("input_ids"), "missing", None, "'input_ids' is missing"),
    "a step left out": (
        lambda t: [t.pop(n) for n in list(t) if n.startswith("step.0.")],
        "missing",
        None,
        "decode step 0 is missing",
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_reported_as_that_defect(lint: Callable[..., LintReport], name: str) -> None:
    edit, code, tensor, told = DEFECTS[name]
    report = lint(edit)
    assert report.return_code == 1
    assert code in {each.code for each in report.defects}
    found = next(each for each in report.defects if each.code == code and tensor in (each.tensor, None))
    assert told in str(found)
    allowed = {code, "missing"} if name in ("renamed", "logits dropped") else {code}
    assert {each.code for each in report.defects} == allowed


def test_metadata_defects(clean: Recorded, tmp_path: Path, checkpoint: Path) -> None:
    fields = clean.metadata.fields()
    del fields["weight_dtype"]
    del fields["config"]
    path = tmp_path / "t.safetensors"
    save_safetensors(clean.tensors, path, metadata=fields, shared="copy")
    report = lint_trace(path)
    assert [each.code for each in report.defects] == ["metadata", "metadata"]
    assert "give --model" in report.notes[0]
    with_model = lint_trace(path, checkpoint)
    assert [each.code for each in with_model.defects] == ["metadata", "metadata"]


def test_a_config_unlike_the_checkpoints_is_a_defect(
    clean: Recorded, checkpoint: Path, save: Callable[..., Path]
) -> None:
    other = replace(clean.metadata, config=replace(clean.metadata.config, layer_norm_epsilon=1e-6))
    (defect,) = lint_trace(save(clean.tensors, other), checkpoint).defects
    assert defect.code == "metadata"
    assert "layer_norm_epsilon is 1e-06 in the trace and 1e-05 in the checkpoint" in defect.what


def test_bfloat16_arithmetic_declared_as_float32(checkpoint: Path, save: Callable[..., Path]) -> None:
    recorded = record_trace(checkpoint, engine="labkit", ids=[[5, 6, 7]], dtype="bfloat16")
    tensors = {n: t.float() if t.is_floating_point() else t for n, t in recorded.tensors.items()}
    declared = replace(recorded.metadata, precision=Precision())
    assert [each.code for each in lint_trace(save(tensors, declared)).defects] == ["precision"]


def test_taps_of_zeros_say_nothing_of_the_precision(clean: Recorded, save: Callable[..., Path]) -> None:
    tensors = {name: clean.tensors[name] for name in ("input_ids", "ln_f", "logits")}
    zeros = tensors | {name: torch.zeros_like(tensors[name]) for name in ("ln_f", "logits")}
    assert {each.code for each in lint_trace(save(zeros, clean.metadata)).defects} == {"unwritten"}
    assert lint_trace(save(tensors, clean.metadata)).defects == ()


@pytest.fixture
def square(tmp_path: Path) -> tuple[Path, Recorded]:
    """A checkpoint and a prompt whose heads, positions and head_dim are of one size."""
    from tests.oracles import random_checkpoint

    random_checkpoint.write(tmp_path / "square", seed=5, n_head=4, n_embd=16)
    recorded = record_trace(tmp_path / "square", engine="labkit", ids=[[5, 6, 7, 8], [9, 1, 2, 3]])
    return tmp_path / "square", recorded


@pytest.mark.parametrize(
    ("tap", "change", "order"),
    [
        ("h.1.attn.q", lambda x: x.transpose(1, 2).contiguous(), "transpose axes 1 and 2"),
        ("h.1.attn.v", lambda x: x.mT.contiguous(), "transpose axes 2 and 3"),
        ("h.0.attn.scores", lambda x: x.mT.contiguous(), "transpose axes 2 and 3"),
        (
            "h.2.resid_mid",
            lambda x: x.mT.contiguous().view(x.shape),
            "reshape it to [2, 16, 4], then permute its axes by (0, 2, 1)",
        ),
    ],
)
def test_a_wrong_layout_of_the_right_shape_needs_the_checkpoint(
    square: tuple[Path, Recorded],
    save: Callable[..., Path],
    tap: str,
    change: Callable[[Tensor], Tensor],
    order: str,
) -> None:
    folder, recorded = square
    path = save({**recorded.tensors, tap: change(recorded.tensors[tap])}, recorded.metadata)
    assert lint_trace(path).defects == ()
    (defect,) = lint_trace(path, folder).defects
    assert (defect.code, defect.tensor) == ("layout", tap)
    assert defect.fix == f"{order} before recording"


def test_masked_scores_and_padded_rows_are_no_defects(checkpoint: Path, save: Callable[..., Path]) -> None:
    recorded = record_trace(checkpoint, engine="labkit", ids=[[5, 6, 7, 8], [9, 1]])
    tensors = dict(recorded.tensors)
    future = torch.ones(4, 4, dtype=torch.bool).triu(1)
    for i in range(3):
        tensors[f"h.{i}.attn.scores"] = tensors[f"h.{i}.attn.scores"].masked_fill(future, -torch.inf)
        pattern = tensors[f"h.{i}.attn.pattern"].clone()
        pattern[1, :, 0] = 0.25  # a row of padding: whatever the softmax of nothing gave
        tensors[f"h.{i}.attn.pattern"] = pattern
    assert lint_trace(save(tensors, recorded.metadata)).defects == ()
    tensors["h.0.attn.pattern"] = tensors["h.0.attn.pattern"].clone()
    tensors["h.0.attn.pattern"][1, 0, 3, 0] = 0.5  # a real query that looks at padding
    assert [each.code for each in lint_trace(save(tensors, recorded.metadata)).defects] == ["future"]


def test_partial_traces_are_clean_and_say_what_is_left_out(record: Callable[..., Path]) -> None:
    report = lint_trace(record(taps=["h.*.resid_post", "h.1.attn.z", "logits"]))
    assert report.defects == ()
    assert any("not recorded: wte, wpe, embed, h.*.ln_1" in note for note in report.notes)


def test_every_code_is_told_by_some_test() -> None:
    made = {code for _, code, _, _ in DEFECTS.values()} | {"metadata", "precision"}
    assert made == set(CODES)


def test_exit_codes_and_json(
    clean: Recorded, save: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    assert run(["lint-trace", str(save(clean.tensors, clean.metadata))]) == 0
    assert "clean" in capsys.readouterr().out
    broken = {**clean.tensors, "h.0.mlp.pre": torch.zeros_like(clean.tensors["h.0.mlp.pre"])}
    assert run(["lint-trace", str(save(broken, clean.metadata)), "--json", "-"]) == 1
    fields = json.loads(capsys.readouterr().out)
    assert [each["code"] for each in fields["defects"]] == ["unwritten"]
    (tmp_path / "no.safetensors").write_bytes(b"not a safetensors file")
    assert run(["lint-trace", str(tmp_path / "no.safetensors")]) == 2
    assert run(["lint-trace", str(tmp_path / "absent.safetensors")]) == 2
    with pytest.raises(FormatError, match=r"no\.safetensors"):
        lint_trace(tmp_path / "no.safetensors")
