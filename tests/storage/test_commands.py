"""The commands: what they print, their JSON, their exit codes, and that a file's own strings cannot drive a terminal."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from labkit.cli.main import run
from labkit.cli.storage import EMBEDDED
from labkit.storage import save_safetensors, save_snapshot
from labkit.storage.crafted import entry, frame

EVIL = "<img src=x onerror=alert(1)>\x1b]0;owned\x07[red]\u202e"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "model.safetensors"
    tensors = {
        "h.0.w": torch.arange(6.0).reshape(2, 3),
        "h.1.w": torch.tensor([1.0, float("nan"), float("inf")]),
        "mask": torch.ones(2, dtype=torch.bool),
    }
    save_safetensors(tensors, place, metadata={"format": "pt"})
    return place


def output(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert run([str(argument) for argument in arguments]) == code
    captured = capsys.readouterr()
    assert captured.err == "" or code
    return captured.out


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line on standard error of a command that cannot do its work."""
    assert run([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_info(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "info", path)
    for part in (str(path), "data starts at byte", "format", "pt", "F32", "BOOL"):
        assert part in text
    found = json.loads(output(capsys, "info", path, "--json", "-"))["files"][0]
    assert found["file_nbytes"] == path.stat().st_size
    assert [tensor["name"] for tensor in found["tensors"]] == ["h.0.w", "h.1.w", "mask"]


def test_info_of_a_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_snapshot({"a": torch.zeros(9), "b": torch.zeros(9)}, tmp_path, max_shard_nbytes=36)
    text = output(capsys, "info", tmp_path)
    assert "model-00002-of-00002.safetensors" in text
    listed = json.loads(output(capsys, "tensors", tmp_path, "--json", "-"))["tensors"]
    assert [Path(tensor["file"]).name for tensor in listed] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert "element [0]" in output(capsys, "bytes", tmp_path, "--tensor", "b", "--json", "-")
    assert "no tensor named 'c'" in told(capsys, "bytes", tmp_path, "--tensor", "c")


def test_tensors(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "tensors", path, "--sort", "size").splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["h.0.w", "h.1.w", "mask"]
    lines = output(capsys, "tensors", path, "--match", "h.1.*", "--sort", "name").splitlines()
    assert len(lines) == 2
    assert "no tensor named 'x*'" in told(capsys, "tensors", path, "--match", "x*")


def test_stats(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(output(capsys, "stats", path).splitlines()) == 4
    found = json.loads(output(capsys, "stats", path, "h.1.w", "--json", "-"))["tensors"]
    assert [(each["name"], each["nans"], each["infinities"], each["maximum"]) for each in found] == [
        ("h.1.w", 1, 1, 1.0)
    ]
    assert "did you mean" in told(capsys, "stats", path, "h.2.w")


def test_export(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.npy"
    assert "3 elements written" in output(capsys, "export", path, "h.0.w", "-o", target, "--rows", "1:2")
    assert np.load(target).tolist() == [[3.0, 4.0, 5.0]]
    assert "not a range of rows" in told(capsys, "export", path, "h.0.w", "-o", target, "--rows", "1-2")
    assert "the rows leave the tensor" in told(capsys, "export", path, "h.0.w", "-o", target, "--rows", "1:9")


def test_bytes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "bytes", path, "--count", "32")
    assert len(text.splitlines()) == 2
    assert "the header length" in text
    rows = output(capsys, "bytes", path, "--count", "400").splitlines()
    assert [row for row in rows if row.count("h.0.w: ") > 1] == []
    assert any(": field dtype, dtype" in row for row in rows)
    text = output(capsys, "bytes", path, "--tensor", "h.0.w", "--count", "24")
    assert "h.0.w [0, 0]" in text
    header = json.loads(output(capsys, "info", path, "--json", "-"))["files"][0]
    at = header["tensors"][0]["begin"] + 4
    assert "element [0, 1] of F32 [2, 3] of tensor 'h.0.w' = 1.0" in output(capsys, "bytes", path, "--at", at)
    found = json.loads(output(capsys, "bytes", path, "--at", at, "--json", "-"))
    assert any(owner["tensor"] == "h.0.w" for row in found["rows"] for owner in row["owners"])
    assert "beyond the file" in told(capsys, "bytes", path, "--at", 10**9)
    assert "both given" in told(capsys, "bytes", path, "--at", 0, "--tensor", "h.0.w")


def test_check(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{path}: sound, every rule is kept" in output(capsys, "check", path)
    assert f"{EMBEDDED}: sound, every rule is kept" in output(capsys, "check")
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(frame("{" + entry() + "," + entry(dtype="I32") + "}", bytes(4)))
    text = output(capsys, "check", bad, code=1)
    for part in (
        "[duplicate-name]",
        "F32 [1] [0, 4], then I32 [1] [0, 4]",
        "safetensors 0.8.0: accepts some",
        "the last of the two",
    ):
        assert part in text
    found = json.loads(output(capsys, "check", bad, "--json", "-", code=1))
    assert found["verdict"] == "defects"
    assert found["defects"][0]["others"][0]["loader"] == "safetensors 0.8.0"
    assert "no such file" in told(capsys, "check", tmp_path / "none")
    both = output(capsys, "check", path, bad, code=1).splitlines()
    assert both[0] == f"{path}: sound, every rule is kept"
    assert both[-1] == f"{bad}: 1 file, 1 defect, 0 cautions"
    found = json.loads(output(capsys, "check", path, bad, "--json", "-", code=1))
    assert [each["verdict"] for each in found] == ["sound", "defects"]


def test_diff(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "all 3 tensors are the same" in output(capsys, "diff", path, path)
    assert "mask" in output(capsys, "diff", path, path, "--all")
    other = tmp_path / "other.safetensors"
    save_safetensors({"h.0.w": torch.arange(6.0).reshape(2, 3) + 1, "x": torch.zeros(1)}, other)
    text = output(capsys, "diff", path, other, code=1)
    assert "4 of 4 tensors differ" in text
    found = json.loads(output(capsys, "diff", path, other, "--json", "-", code=1))
    assert found["tensors"][0]["max_abs"] == 1.0
    assert "no such file" in told(capsys, "diff", path, tmp_path / "none.safetensors")


def test_selftest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "0 wrongly" in output(capsys, "selftest", "--keep", tmp_path / "crafted")
    assert len(list((tmp_path / "crafted").iterdir())) > 250
    assert all(each["passed"] for each in json.loads(output(capsys, "selftest", "--json", "-"))["files"])


@pytest.mark.parametrize("command", ["info", "tensors", "stats", "check", "bytes", "diff"])
def test_a_hostile_name_cannot_drive_the_terminal(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "evil.safetensors"
    save_safetensors({EVIL: torch.zeros(2)}, place, metadata={EVIL: EVIL})
    other = tmp_path / "other.safetensors"
    save_safetensors({"a": torch.zeros(2)}, other)
    assert run([command, str(place), *([str(other)] if command == "diff" else [])]) in (0, 1)
    assert run(["stats", str(place), "x"]) == 2
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert not set(text) & {"\x1b", "\x07", "\u202e"}
    assert "[red]" in captured.err


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lfs.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "Git LFS pointer" in told(capsys, "info", tmp_path / "lfs.safetensors")
    assert "no such file" in told(capsys, "tensors", tmp_path / "none.safetensors")
    assert "no checkpoint here" in told(capsys, "stats", tmp_path)
