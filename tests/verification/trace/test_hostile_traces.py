"""Trace files that hold next to nothing, or names, masks and metadata that no engine writes: told, never a crash."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from labkit.cli.main import run
from labkit.storage import save_safetensors
from labkit.verification.trace_record import record_trace

NINES = "9" * 5000
Tensors = dict[str, Tensor]
Edit = Callable[[Tensors, dict[str, str]], object]


def no_row(tensors: Tensors) -> Tensors:
    return {"attention_mask": torch.zeros_like(tensors["input_ids"])}


HOSTILE: dict[str, tuple[Edit, str]] = {
    "no tensor at all": (lambda t, m: t.clear(), "tensor 'input_ids' is missing"),
    "a mask of zeros": (lambda t, m: t.update(no_row(t)), "a row is padding throughout"),
    "a config that nests": (lambda t, m: m.update(config="[" * 100_000), "nests too deep"),
    "a config of digits": (lambda t, m: m.update(config='{"n_head": ' + NINES + "}"), "has 5000 characters"),
    "ids of no row": (lambda t, m: t.update(input_ids=torch.zeros(0, 3).long()), "not a batch of prompts"),
    "ids of floats": (lambda t, m: t.update(input_ids=torch.zeros(1, 3)), "not whole numbers"),
    "ids beyond": (lambda t, m: t.update(input_ids=torch.full((1, 3), 2**62)), "beyond the vocabulary"),
    "positions beyond": (lambda t, m: t.update(position_ids=torch.full((1, 3), 2**62)), "beyond wpe's table"),
    "positions of no axis": (lambda t, m: t.update(position_ids=torch.tensor(1)), "the shape is wrong"),
    "a step left out": (
        lambda t, m: t.update({"step.7.input_ids": torch.ones(1, 1).long()}),
        "decode step 0 is missing",
    ),
}
COMMANDS: dict[str, Callable[[str, str], list[str]]] = {
    "verify": lambda file, folder: ["verify", folder, "--trace", file],
    "invariants": lambda file, folder: ["invariants", folder, "--trace", file],
    "compare": lambda file, folder: ["compare", file, file, "--model", folder],
}


def write(checkpoint: Path, file: Path, edit: Edit) -> None:
    recorded = record_trace(checkpoint, engine="labkit", ids=[[5, 6, 7]])
    tensors, metadata = dict(recorded.tensors), recorded.metadata.fields()
    edit(tensors, metadata)
    save_safetensors(tensors, file, metadata=metadata)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_used_is_told(
    name: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit, told = HOSTILE[name]
    file = tmp_path / "trace.safetensors"
    write(checkpoint, file, edit)
    capsys.readouterr()
    for line in COMMANDS.values():
        assert run(line(str(file), str(checkpoint))) == 2
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1
        assert told in captured.err
    assert run(["lint-trace", str(file), "--model", str(checkpoint)]) in (1, 2)
    captured = capsys.readouterr()
    assert told in captured.out + captured.err


ODD_NAMES: Mapping[str, str] = {
    f"step.{NINES}.input_ids": "I64",
    f"step.{NINES}.logits": "F32",
    f"h.{NINES}.ln_1": "F32",
    f"h.{'9' * 18}.ln_1": "F32",
    "h.٣.ln_1": "F32",
    "step.²": "F32",
}


def test_names_with_numbers_of_any_length_are_no_taps(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.safetensors"

    def add(tensors: Tensors, _: dict[str, str]) -> None:
        tensors |= {
            name: torch.ones(1, 3).long() if kind == "I64" else torch.ones(1, 3) for name, kind in ODD_NAMES.items()
        }

    write(checkpoint, file, add)
    assert run(["verify", str(checkpoint), "--trace", str(file)]) == 0
    capsys.readouterr()
    assert run(["lint-trace", str(file), "--model", str(checkpoint)]) == 1
    assert capsys.readouterr().out.count("no tap has this name") == len(ODD_NAMES)
