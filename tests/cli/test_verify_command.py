"""``labkit verify`` as a user calls it: exit codes, the table, JSON, and one line for bad input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.cli.main import run


def test_table_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--prompt", "It is a truth", "--tokens", "3"]) == 0
    out = capsys.readouterr().out
    assert "same: all 61 stages within rounding" in out
    lines = out.splitlines()
    names = [
        line.split()[0] for line in lines if line.startswith(("wte", "embed", "h.3.resid_post", "ln_f", "logits "))
    ]
    assert names == ["wte", "embed", "h.3.resid_post", "ln_f", "logits", "logits"]
    assert next(line for line in lines if line.startswith("budget: what rounding explains at the element"))
    assert next(line for line in lines if line.startswith("used: ")).endswith("here may exceed used")


def test_help_says_where_the_columns_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--help"]) == 0
    assert "docs/verification.md" in capsys.readouterr().out


def test_planted_fault_exits_1_and_names_the_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--plant", "erf-gelu:2", "--prompt", "It is a truth", "--tokens", "0"]) == 1
    assert "differs: h.2.mlp.post is the first stage beyond rounding" in capsys.readouterr().out


def test_json_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--plant", "no-mask", "--ids", "5,6,7", "--tokens", "2", "--json", "-"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["first_divergence"]) == ("differs", "h.0.attn.pattern")
    assert len(report["stages"]) == 61
    assert {"name", "max_abs", "budget", "verdict"} <= report["stages"][0].keys()
    assert [s["verdict"] for s in report["stages"][:8]] == ["same"] * 8


def test_json_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.json"
    assert run(["verify", "--ids", "5,6", "--tokens", "0", "--json", str(target)]) == 0
    assert json.loads(target.read_text())["verdict"] == "same"
    assert "same: all 61" in capsys.readouterr().out
    assert run(["verify", "--ids", "5,6", "--tokens", "0", "--json", str(tmp_path / "no" / "report.json")]) == 2
    assert "no such folder; make it first" in capsys.readouterr().err


def test_a_page_has_the_folder_as_it_was_named_and_prompts_that_would_show_more(
    tmp_path: Path, embedded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "page.html"
    assert run(["verify", str(embedded), "--ids", "5,6", "--tokens", "0", "--html", str(target)]) == 0
    page = target.read_text(encoding="utf-8")
    assert f"labkit verify {embedded} --ids 5,6" in page
    assert "would show with" in page


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "--html"],
        ["verify", "--certificate"],
        ["verify", "--json"],
        ["faults", "--json"],
        ["dtype-study", "--json"],
        ["trace", "-o"],
        ["generate", "It", "--json"],
    ],
    ids=" ".join,
)
def test_a_file_that_cannot_be_written_is_told_before_the_long_run(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labkit.load.load_gpt2", lambda *_args, **_options: pytest.fail("it began to run"))
    closed = tmp_path / "closed"
    closed.mkdir()
    reachable = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed and reachable(path, mode))
    for target, message in (
        (tmp_path, f"{tmp_path}: it is a folder (expected a file to write)"),
        (tmp_path / "no" / "file", f"{tmp_path / 'no'}: no such folder; make it first"),
        (closed / "file", f"{closed}: the folder cannot be written to; name another"),
    ):
        assert run([*arguments, str(target)]) == 2
        assert capsys.readouterr() == ("", f"labkit: {message}\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["verify", "/no/such/folder"], "/no/such/folder"),
        (["verify", "--plant", "nothing"], "no fault named 'nothing'"),
        (["verify", "--prompt", ""], "no tokens"),
        (["verify", "--ids", "a,b"], "not a list of token ids"),
        (["verify", "--ids", "99999"], "beyond the vocabulary"),
        (["verify", "--prompt", "a", "--ids", "1"], "both given"),
        (["verify", "--dtype", "int8"], "no dtype named 'int8'; known: 'float32', 'f32'"),
        (["verify", "--device", "cuda:99"], "device"),
        (["verify", "--no-such-option"], "--no-such-option"),
        (["verify", "--tokens", "x"], "--tokens"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_exit_2(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert text in captured.err
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("labkit: ")


def test_internal_errors_exit_3_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import labkit.verification

    def broken(*_args: object, **_options: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(labkit.verification, "verify", broken)
    assert run(["verify"]) == 3
    assert "internal error, RuntimeError: a bug" in capsys.readouterr().err


def test_interruption_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    import labkit.verification

    def interrupted(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(labkit.verification, "verify", interrupted)
    assert run(["verify"]) == 130


def test_the_installed_command_runs(root: Path) -> None:
    command = Path(sys.executable).parent / "labkit"
    done = subprocess.run([command, "--help"], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0
    assert "verify" in done.stdout
