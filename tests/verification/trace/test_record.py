"""Recording: both engines, options, and the command."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from labkit.cli.main import run
from labkit.errors import ArgumentError, LabkitError, UnknownNameError
from labkit.verification.chain import left_padded
from labkit.verification.precision import Precision
from labkit.verification.trace import open_trace
from labkit.verification.trace_record import record_trace

IDS = [[5, 17, 3, 96, 42, 7], [11, 2, 8]]


def test_both_engines_record_the_same_taps(checkpoint: Path) -> None:
    ours, theirs = (record_trace(checkpoint, engine=engine, ids=IDS, steps=2) for engine in ("labkit", "hf"))
    assert {n: t.shape for n, t in ours.tensors.items()} == {n: t.shape for n, t in theirs.tensors.items()}
    for name in ("step.0.input_ids", "step.1.input_ids", "step.1.attention_mask", "step.1.position_ids"):
        assert torch.equal(ours.tensors[name], theirs.tensors[name])
    assert torch.allclose(ours.tensors["step.1.logits"], theirs.tensors["step.1.logits"], atol=1e-4)
    assert ours.metadata.weights_sha256 == theirs.metadata.weights_sha256 is not None


def test_steps_are_greedy(checkpoint: Path) -> None:
    tensors = record_trace(checkpoint, engine="labkit", ids=IDS, steps=2).tensors
    assert torch.equal(tensors["step.0.input_ids"][:, 0], tensors["logits"][:, -1].argmax(-1))
    assert torch.equal(tensors["step.1.input_ids"][:, 0], tensors["step.0.logits"][:, -1].argmax(-1))
    assert tensors["step.1.h.0.attn.pattern"].shape[-2:] == (1, 8)


def test_padding_is_on_the_left_and_positions_count_the_real_ones() -> None:
    inputs = left_padded(IDS)
    assert inputs.ids[1].tolist() == [0, 0, 0, 11, 2, 8]
    assert inputs.position_ids[1].tolist() == [0, 0, 0, 0, 1, 2]
    assert left_padded([[1, 2], [3, 4]]).attention_mask is None


def test_taps_by_glob_and_extra_taps(checkpoint: Path) -> None:
    recorded = record_trace(checkpoint, engine="labkit", ids=IDS[:1], taps=["h.*.attn.c_attn", "logits"])
    assert list(recorded.tensors) == ["input_ids", *(f"h.{i}.attn.c_attn" for i in range(3)), "logits"]
    with pytest.raises(UnknownNameError, match=r"no tap of transformers named 'h.0.attn.c_attn'"):
        record_trace(checkpoint, engine="hf", ids=IDS[:1], taps=["h.*.attn.c_attn"])


def test_dtypes_are_declared(checkpoint: Path) -> None:
    for engine in ("labkit", "hf"):
        recorded = record_trace(checkpoint, engine=engine, ids=IDS[:1], dtype="bfloat16")
        assert recorded.metadata.precision == Precision(
            compute=torch.bfloat16, accumulate=torch.float32, weight=torch.bfloat16
        )
        assert recorded.tensors["h.0.ln_1"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"engine": "jax"}, "no engine named 'jax'"),
        ({"steps": -1}, "decode steps is negative"),
        ({"steps": 30}, "longer than the model's context"),
        ({"plant": ["no-mask"], "engine": "hf"}, "planted in labkit's engine"),
        ({"plant": ["no-mas"]}, "no fault named 'no-mas'"),
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
        ({"taps": "h.9.ln_1"}, "no tap named 'h.9.ln_1'"),
        ({"ids": []}, "no prompt"),
    ],
)
def test_what_cannot_be_recorded_is_named(checkpoint: Path, options: dict[str, object], told: str) -> None:
    with pytest.raises(LabkitError, match=told):
        record_trace(checkpoint, **{"engine": "labkit", "ids": IDS, **options})


def test_ids_beyond_the_vocabulary(checkpoint: Path) -> None:
    with pytest.raises(LabkitError, match="beyond the vocabulary"):
        record_trace(checkpoint, engine="hf", ids=[[97]])
    with pytest.raises(ArgumentError, match="longer than the model's context"):
        record_trace(checkpoint, ids=[[1] * 33])


def test_prompts_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two texts on the embedded checkpoint make one padded batch."""
    out = tmp_path / "out.safetensors"
    texts = ["--prompt", "It was a bright cold morning", "--prompt", "Yes"]
    assert run(["trace", "-o", str(out), *texts, "--engine", "labkit", "--taps", "logits", "--steps", "1"]) == 0
    assert "from labkit" in capsys.readouterr().out
    with open_trace(out) as trace:
        assert trace["attention_mask"].sum(dim=1).tolist()[0] > trace["attention_mask"].sum(dim=1).tolist()[1]
        assert trace.steps == (None, 0)


def test_refusals_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "o")
    assert run(["trace", "-o", out, "--prompt", "a", "--ids", "1"]) == 2
    assert run(["trace", "-o", out, "--from-dumps", "map.json", "--ids", "1"]) == 2
    assert run(["trace", "-o", out, "--ids", "1", "--plant", "no-mask"]) == 2
    assert run(["trace", "--ids", "1"]) == 2
    assert not Path(out).exists()
    assert "Traceback" not in capsys.readouterr().err


def test_planted_faults_are_named_in_the_engine(record: Callable[..., Path]) -> None:
    with open_trace(record(plant=["no-mask:1", "erf-gelu:1"])) as trace:
        assert trace.metadata.engine == "labkit with no-mask:1, erf-gelu:1 planted"
