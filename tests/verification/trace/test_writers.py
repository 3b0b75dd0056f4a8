"""The writers in C and Rust: built with the compiler alone, their traces lint clean and verify."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from labkit.cli.main import run
from labkit.verification.lint import lint_trace
from labkit.verification.trace import open_trace
from labkit.verification.trace_record import Recorded, record_trace
from labkit.verification.verify_trace import verify_trace

WRITERS = Path("labkit", "data", "trace_writers")
C_IDS = [5, 17, 3, 96, 42, 7, 11]


def build(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def compiler() -> str:
    found = shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler (cc) on this machine")
    return found


@pytest.fixture(scope="module")
def engine(compiler: str, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C engine, built with every warning an error and with checks of memory and undefined behaviour."""
    binary = tmp_path_factory.mktemp("c") / "gpt2_trace"
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-fsanitize=address,undefined"]
    build([compiler, *flags, "-o", str(binary), str(root / WRITERS / "gpt2_trace.c"), "-lm"])
    return binary


def run_engine(engine: Path, folder: Path, out: Path, ids: list[int]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    command = [str(engine), str(folder), str(out), *map(str, ids)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_the_c_engine_verifies(engine: Path, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.safetensors"
    done = run_engine(engine, checkpoint, out, C_IDS)
    assert (done.returncode, done.stderr) == (0, "")
    assert lint_trace(out, checkpoint).defects == ()
    report = verify_trace(out, checkpoint)
    assert (report.verdict, report.engine) == ("same", "gpt2_trace.c")
    assert len(report.stages) == 3 + 3 * 14 + 2


def test_the_c_engine_on_the_embedded_checkpoint(engine: Path, embedded: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.safetensors"
    assert run_engine(engine, embedded, out, list(range(30, 45))).returncode == 0
    assert verify_trace(out).verdict == "same"


FAULTS = {
    "erf GELU": (
        "tanhf(0.7978845608028654f * (v + 0.044715f * v * v * v))",
        "erff(v / sqrtf(2))",
        "mlp.post",
        "erf-gelu",
    ),
    "no scale": ("score[j] /= sqrtf((float)D);", "", "attn.scores", "scale-missing"),
    "epsilon left out": ("sqrtf(variance + epsilon)", "sqrtf(variance)", "ln_1", "epsilon-1e-12"),
    "one key too few": (
        "sum += row[j] = expf(score[j] - largest)",
        "sum += row[j] = j || !i ? expf(score[j] - largest) : 0",
        "attn.pattern",
        None,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_in_the_c_code_are_found_where_they_are(
    fault: str, compiler: str, root: Path, checkpoint: Path, tmp_path: Path
) -> None:
    right, wrong, stage, cause = FAULTS[fault]
    source = (root / WRITERS / "gpt2_trace.c").read_text()
    assert source.count(right) == 1
    (tmp_path / "wrong.c").write_text(source.replace(right, wrong))
    build([compiler, "-O1", "-o", str(tmp_path / "wrong"), str(tmp_path / "wrong.c"), "-lm"])
    out = tmp_path / "c.safetensors"
    assert run_engine(tmp_path / "wrong", checkpoint, out, C_IDS).returncode == 0
    report = verify_trace(out, checkpoint)
    origins = report.origins
    assert origins[0] == f"h.0.{stage}"
    assert {re.sub(r"^h\.\d+\.", "", tap) for tap in origins} <= {stage, "ln_2", "ln_f"}
    assert cause in report.findings[0].candidates or cause is report.findings[0].cause


@pytest.mark.parametrize(
    ("ids", "told"), [([5, 97], "97: the id is beyond the vocabulary"), ([1] * 33, "too many ids")]
)
def test_the_c_engine_refuses(engine: Path, checkpoint: Path, tmp_path: Path, ids: list[int], told: str) -> None:
    done = run_engine(engine, checkpoint, tmp_path / "c.safetensors", ids)
    assert done.returncode == 2
    assert told in done.stderr


@pytest.fixture(scope="module")
def gatherer(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Rust writer."""
    if shutil.which("rustc") is None:
        pytest.skip("no Rust compiler (rustc) on this machine")
    binary = tmp_path_factory.mktemp("rust") / "trace_writer"
    source = root / WRITERS / "trace_writer.rs"
    build(["rustc", "--edition", "2021", "--deny", "warnings", "-o", str(binary), str(source)])
    return binary


def test_the_rust_writer_verifies(gatherer: Path, checkpoint: Path, clean: Recorded, tmp_path: Path) -> None:
    recorded = record_trace(checkpoint, engine="labkit", ids=[[5, 6, 7, 8], [9, 10, 11, 12]])
    lines = []
    for name, tensor in recorded.tensors.items():
        tensor.contiguous().numpy().tofile(tmp_path / f"{name}.bin")
        dtype = "I64" if tensor.dtype == torch.int64 else "F32"
        lines.append(f"{name} {dtype} {','.join(map(str, tensor.shape))} {tmp_path / name}.bin")
    out, config = tmp_path / "rust.safetensors", checkpoint / "config.json"
    command = [str(gatherer), str(out), 'engine "in" Rust', str(config)]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with open_trace(out) as trace:
        assert trace.metadata.engine == 'engine "in" Rust'
        assert all(torch.equal(trace[name], tensor) for name, tensor in recorded.tensors.items())
    assert lint_trace(out, checkpoint).defects == ()
    assert verify_trace(out, checkpoint).verdict == "same"


def test_the_rust_writer_refuses(gatherer: Path, checkpoint: Path, tmp_path: Path, save: Callable[..., Path]) -> None:
    command = [str(gatherer), str(tmp_path / "o"), "e", str(checkpoint / "config.json")]
    for line, told in (("logits F64 1 x.bin", "x.bin"), ("logits F32", "not a name"), ("a F32 1,x y", "invalid digit")):
        done = subprocess.run(command, input=line, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert told in done.stderr


def test_the_readme_is_what_happens(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its commands, in a copy of the folder, with the ids and the outputs that it gives."""
    readme = (root / WRITERS / "README.md").read_text()
    for name in (WRITERS.name, "tiny"):
        shutil.copytree(root / WRITERS.parent / name, tmp_path / name)
    folder, tiny = tmp_path / WRITERS.name, tmp_path / "tiny"
    commands = [line.strip() for line in readme.splitlines() if line.startswith("    ")]
    cc, engine, verify, rustc, writer = commands
    if shutil.which("cc") is None or shutil.which("rustc") is None:
        pytest.skip("no C or Rust compiler (cc, rustc) on this machine")

    def shell(command: str) -> str:
        return subprocess.run(
            command, shell=True, cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    shell(cc)
    told = shell(engine)
    assert f"`{told}`" in readme
    assert verify == "labkit verify ../tiny --trace out.safetensors"
    assert run(["verify", str(tiny), "--trace", str(folder / "out.safetensors")]) == 0
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert f"`{verdict.partition(' (')[0]}`" in readme
    assert run(["encode", "-t", str(tiny), "It is a truth"]) == 0
    ids = capsys.readouterr().out.split()
    assert engine.endswith(" ".join(ids))
    torch.tensor([[int(each) for each in ids]]).numpy().tofile(folder / "ids.bin")
    with open_trace(folder / "out.safetensors") as trace:
        trace["h.0.ln_1"].contiguous().numpy().tofile(folder / "ln1.bin")
    lines = ("input_ids I64 1,4 ids.bin", "h.0.ln_1 F32 1,4,192 ln1.bin")
    assert all(f"`{line}`" in readme for line in lines)
    (folder / "LIST").write_text("\n".join(lines))
    shell(rustc)
    assert f"`{shell(writer)}`" in readme
    assert verify_trace(folder / "out.safetensors", tiny).verdict == "same"
