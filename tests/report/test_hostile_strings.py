"""Strings from files, as hostile as can be, through every renderer and command: none drives a terminal, none is markup."""

import dataclasses
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console, RenderableType

import labkit
from labkit.checkpoint import read_checkpoint
from labkit.checkpoint.inventory import take_inventory
from labkit.cli.main import run
from labkit.hub.doctor import Diagnosis, Finding
from labkit.load import embedded
from labkit.report.checkpoint import render_inventory, render_load_report
from labkit.report.checkpoint_doctor import render_diagnosis
from labkit.report.faults import render_kill_matrix
from labkit.report.invariants import render_invariants
from labkit.report.links import render_chain
from labkit.report.storage import render_info, render_tensors
from labkit.report.storage_bytes import render_rows
from labkit.report.storage_findings import render_check, render_diff, render_statistics
from labkit.report.trace import render_comparison, render_lint
from labkit.report.verify import render_verification
from labkit.storage import open_snapshot, save_safetensors
from labkit.storage.byteview import ByteView
from labkit.storage.checking import check_path
from labkit.storage.comparison import compare_snapshots
from labkit.storage.header import read_header
from labkit.storage.statistics import measure_tensor
from labkit.verification.certificate import certify
from labkit.verification.compare_traces import compare_traces
from labkit.verification.invariants import check_model
from labkit.verification.kill_matrix import kill_matrix
from labkit.verification.links import Link
from labkit.verification.lint import lint_trace
from labkit.verification.trace_record import record_trace

HOSTILE = "\x1b]0;owned\x07\x1b[31m[bold]x[/y]\r\u202e\x9b\x7f"
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")
FREE = {"name", "engine", "checkpoint", "notes", "detail", "what", "fix", "tensor", "remark", "folder", "path", "shard"}
"""Fields that hold text from files, and no word of labkit's own that a renderer looks up."""


def poisoned(record: Any) -> Any:
    """The record with the hostile text at the end of every string that a file could have chosen."""
    if isinstance(record, tuple | list):
        return type(record)(map(poisoned, record))
    if not dataclasses.is_dataclass(record) or isinstance(record, type):
        return record
    changed = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.name in FREE and isinstance(value, str):
            changed[field.name] = value + HOSTILE
        elif field.name in FREE and isinstance(value, tuple) and all(isinstance(each, str) for each in value):
            changed[field.name] = (*value, HOSTILE)
        else:
            changed[field.name] = poisoned(value)
    return dataclasses.replace(record, **changed)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace whose names and metadata are hostile, under a hostile name."""
    recorded = record_trace(engine="labkit", ids=[[5, 6, 7]], taps=["logits", "h.0.ln_1"])
    tensors = {**recorded.tensors, HOSTILE: torch.ones(2), f"h.0.ln1{HOSTILE}": torch.ones(2)}
    metadata = {**recorded.metadata.fields(), "engine": HOSTILE, "weights_sha256": HOSTILE, HOSTILE: HOSTILE}
    path = tmp_path_factory.mktemp("hostile") / f"a{HOSTILE.replace('/', '')}.safetensors"
    save_safetensors(tensors, path, metadata=metadata)
    return path


Render = Callable[[Path], RenderableType]
RENDERERS: dict[str, Render] = {
    "verification": lambda _: render_verification(poisoned(labkit.verify(ids=[[5, 6]], tokens=2, plant="erf-gelu"))),
    "lint": lambda file: render_lint(poisoned(lint_trace(file))),
    "comparison": lambda file: render_comparison(poisoned(compare_traces(file, file))),
    "comparison with a model": lambda file: render_comparison(compare_traces(file, file, folder=embedded())),
    "invariants": lambda _: render_invariants(HOSTILE, poisoned(check_model(labkit.load_gpt2()))),
    "chain": lambda _: render_chain([Link(name=HOSTILE, verdict="broken", detail=HOSTILE)]),
    "kill matrix": lambda _: render_kill_matrix(
        dataclasses.replace(kill_matrix(faults=["erf-gelu"], floors="skip"), checkpoint=HOSTILE)
    ),
    "inventory": lambda _: render_inventory(poisoned(take_inventory(embedded()))),
    "load report": lambda _: render_load_report(poisoned(read_checkpoint(embedded()).report)),
    "diagnosis": lambda _: render_diagnosis(
        Diagnosis(findings=(Finding(group="python", name=HOSTILE, state="missing", detail=HOSTILE),))
    ),
    "info": lambda file: render_info([read_header(file)], [HOSTILE]),
    "tensors": lambda file: render_tensors(
        [(read_header(file), entry) for entry in read_header(file).entries.values()]
    ),
    "bytes": lambda file: render_rows(ByteView(file).rows(0, 4096), width=200),
    "check": lambda file: render_check(check_path(file), file),
    "diff": lambda file: render_diff(_difference(file)),
    "statistics": lambda file: render_statistics(list(_statistics(file))),
}


def _difference(file: Path) -> Any:
    with open_snapshot(file) as a, open_snapshot(embedded()) as b:
        return compare_snapshots(a, b)


def _statistics(file: Path) -> Iterator[Any]:
    with labkit.open_safetensors(file) as opened:
        yield from (measure_tensor(opened, name) for name in opened)


@pytest.mark.parametrize("name", RENDERERS)
def test_no_renderer_lets_it_through(name: str, file: Path) -> None:
    out = io.StringIO()
    Console(file=out, width=400).print(RENDERERS[name](file))
    text = out.getvalue()
    assert not RAW.search(text)
    assert "owned" in text


def lines(file: Path, folder: Path) -> Iterator[list[str]]:
    path, tiny = str(file), str(embedded())
    yield from (
        ["lint-trace", path],
        ["lint-trace", path, "--model", tiny],
        ["verify", "--trace", path],
        ["compare", path, path],
        ["compare", path, path, "--model", tiny],
        ["invariants", "--trace", path],
        ["info", path],
        ["tensors", path],
        ["stats", path],
        ["check", path],
        ["bytes", path, "--at", "30"],
        ["diff", path, str(embedded() / "model.safetensors")],
        ["inventory", path],
        ["verify", path],
        ["verify", "--recheck", path],
        ["verify", "--recheck", str(folder / "certificate.json")],
        ["verify", "--recheck", str(folder / "odd.json")],
        ["trace", "--engine", "labkit", "--ids", "5", "-o", f"{folder}/b{HOSTILE.replace('/', '')}"],
        ["trace", "--from-dumps", path, "-o", f"{folder}/c"],
        ["export", path, "logits", "-o", f"{folder}/d{HOSTILE.replace('/', '')}.npy"],
        ["convert", path, f"{folder}/new"],
        ["convert", tiny, f"{folder}/new", "--names", path],
        ["generate", "a", "--model", path],
        ["generate", "--batch-file", path],
        ["encode", "--file", path],
        ["parity", path],
        ["faults", path],
        [HOSTILE],
        ["verify", "--plant", HOSTILE],
        ["trace", "-o", "a", "--taps", HOSTILE],
        ["export", path, HOSTILE + "x", "-o", "a.npy"],
    )


def test_no_command_lets_it_through(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certificate = certify(labkit.verify(ids=[[5, 6]], tokens=1), embedded())
    finding = {"where": HOSTILE, "cause": HOSTILE}
    sha256 = {HOSTILE: HOSTILE}
    odd = {**certificate, "first_divergence": HOSTILE, "findings": [finding], "checkpoint": {"sha256": sha256}}
    (tmp_path / "certificate.json").write_text(json.dumps(odd))
    (tmp_path / "odd.json").write_text(json.dumps({**certificate, "verdict": HOSTILE, HOSTILE: 1}))
    for line in lines(file, tmp_path):
        code = run(line)
        captured = capsys.readouterr()
        assert code in (0, 1, 2), (line, captured.err)
        assert not RAW.search(captured.out + captured.err), line
