"""Arguments that no command could honour end in one line and exit 2, soon, whatever their length or size."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from labkit.cli.main import run
from labkit.load import embedded

NINES = "9" * 5000
WEIGHTS = str(embedded() / "model.safetensors")
TINY = str(embedded())
LINES: dict[str, tuple[Sequence[str], str]] = {
    "ids of any length, verify": (["verify", "--ids", NINES], "not a list of token ids"),
    "ids of any length, trace": (["trace", "-o", "a", "--ids", f"1,{NINES}"], "not a list of token ids"),
    "ids of any length, generate": (["generate", "--ids", NINES], "not a list of token ids"),
    "ids of any length, invariants": (["invariants", "--ids", NINES], "not a list of token ids"),
    "ids of any length, dtype-study": (["dtype-study", "--ids", NINES], "not a list of token ids"),
    "ids of any length, decode": (["decode", NINES], "not a list of token ids"),
    "ids beyond 64 bits": (["faults", "--ids", "9" * 23], "not a list of token ids"),
    "ids in other digits": (["decode", "٣"], "not a list of token ids"),
    "an id beyond, faults": (
        ["faults", "--ids", "2048", "--only", "erf-gelu", "--no-floors"],
        "prompt 1: id 0 is beyond the vocabulary (expected 0 to 2047, got 2048)",
    ),
    "an id beyond, verify": (["verify", "--ids", "9" * 18], "id 0 is beyond the vocabulary"),
    "an id beyond, trace": (["trace", "-o", "a", "--ids", "1,2048"], "id 1 is beyond the vocabulary"),
    "an id beyond, invariants": (["invariants", "--ids", "2048"], "id 0 is beyond the vocabulary"),
    "an id beyond, generate": (["generate", "--ids", "2048"], "beyond the vocabulary"),
    "a row of any number": (
        ["export", WEIGHTS, "transformer.ln_f.bias", "-o", "a.npy", "--rows", f"{NINES}:1"],
        "not a range of rows",
    ),
    "a block of any number": (["verify", "--plant", f"erf-gelu:{NINES}"], "the block of a fault is not a number"),
    "a block left out": (["verify", "--plant", "erf-gelu:"], "the block of a fault is not a number"),
    "a shard of any size": (["convert", TINY, "new", "--shard-size", "9" * 400], "not a size"),
    "bytes without end": (
        ["bytes", WEIGHTS, "--at", "0", "--count", str(10**12)],
        "--count: out of range (expected at most 65536, got '1000000000000'); `labkit bytes --help`",
    ),
    "an infinite tolerance": (["compare", "a", "b", "--atol", "inf"], "--atol: the tolerance cannot be used"),
    "threads 0": (["generate", "a", "--threads", "0"], ", 4 a core, got 0)"),
    "tokens no number": (
        ["generate", "a", "--tokens", "x"],
        "--tokens: not a whole number (got 'x'); `labkit generate",
    ),
    "a heat no number": (["generate", "a", "--temperature", "x"], "--temperature: not a number (got 'x'); `labkit"),
    "an order of no name": (["tensors", "--sort", "x"], "--sort: 'x' is not one of 'offset', 'name', 'size'; `labkit"),
    "an option too many": (["info", "--frob"], "No such option: --frob; `labkit info --help` says what it takes"),
    "files without end": (["info", *(f"name-{number}" for number in range(900))], "characters); `labkit info --help`"),
    "threads in plenty": (["generate", "a", "--threads", "100000"], "--threads: out of range"),
    "threads without end": (["generate", "a", "--threads", str(10**12)], "--threads: out of range"),
    "a seed beyond 63 bits": (["generate", "a", "--temperature", "1", "--seed", str(2**70)], "--seed: out of range"),
    "a temperature of infinity": (["generate", "a", "--temperature", "inf"], "--temperature: out of range"),
    "a penalty that overflows": (["generate", "a", "--repetition-penalty", "1e-300"], "--repetition-penalty: out of"),
    "device meta": (["generate", "a", "--device", "meta"], "--device: it holds no values"),
    "device meta, verify": (["verify", "--device", "meta"], "--device: it holds no values"),
    "a text of many pieces": (["merges", "a " * 5000], "too long to show its merges (expected at most 2,000 pieces"),
    "a device as a text": (["encode", "--file", "/dev/zero"], "not a regular file (got a device)"),
    "a device as prompts": (["generate", "--batch-file", "/dev/zero"], "not a regular file (got a device)"),
    "a device as a config": (["inventory", "--config", "/dev/zero"], "not a regular file (got a device)"),
    "a device to learn from": (
        ["train-bpe", "/dev/zero", "--vocab-size", "300", "-o", "new"],
        "not a regular file (got a device)",
    ),
    "a device as a certificate": (["verify", "--recheck", "/dev/full"], "not a regular file (got a device)"),
    "a device as a name map": (["convert", TINY, "new", "--names", "zero.json"], "not a regular file (got a device)"),
    "a pipe as a text": (["encode", "--file", "pipe"], "not a regular file (got a pipe)"),
    "a pipe as a config": (["convert", TINY, "new", "--config", "pipe"], "not a regular file (got a pipe)"),
    "a pipe as a map": (["trace", "-o", "a", "--from-dumps", "pipe"], "not a regular file (got a pipe)"),
    "nothing to learn from": (["train-bpe", "empty", "--vocab-size", "300", "-o", "new"], "the texts are empty"),
}


@pytest.mark.parametrize("name", LINES)
def test_the_line_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    line, told = LINES[name]
    assert run([*line]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert told in captured.err


def test_prompts_are_parted_by_line_feeds_alone(tmp_path: Path) -> None:
    from labkit.cli.generate import read_prompts

    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffone\r\n\n two\x0bthree\x0cfour\x85five\u2028six \nseven\r".encode())
    found = [(each.line, each.value) for each in read_prompts(None, path)]
    assert found == [(1, "one"), (3, " two\x0bthree\x0cfour\x85five\u2028six "), (4, "seven")]


def test_a_temperature_of_next_to_nothing_draws_the_likeliest(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["generate", "It is a truth", "--tokens", "6"]
    assert run(common) == 0
    greedy = capsys.readouterr().out
    for temperature in ("1e-300", "1e-38", "5e-324"):
        assert run([*common, "--temperature", temperature, "--seed", "3", "--top-k", "50"]) == 0
        assert capsys.readouterr().out == greedy


def test_empty_input_has_no_ids(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (tmp_path / "empty").touch()
    assert run(["decode", "--file", str(tmp_path / "empty")]) == 0
    assert capfdbinary.readouterr().out == b""
