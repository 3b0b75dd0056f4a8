"""Options given several times: each value counts, or the command says that it holds one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperOption
from typer.main import get_command

from labkit.cli.main import app, run
from labkit.verification.faults import plantings
from labkit.verification.verify_trace import verify_trace

Capture = pytest.CaptureFixture[str]
TWO = ("--plant", "no-mask:1", "--plant", "erf-gelu:1")
"""Two faults in one block, each in an operation of its own."""


def words(text: str) -> str:
    return " ".join(text.split())


def test_verify_and_trace_plant_every_fault_given(tmp_path: Path, capsys: Capture) -> None:
    assert run(["verify", *TWO, "--ids", "5,6,7", "--tokens", "0"]) == 1
    said = capsys.readouterr().out
    assert "labkit, with no-mask:1, erf-gelu:1 planted, against" in words(said).replace(
        "planted against", "planted, against"
    )
    assert {"[no-mask]", "[erf-gelu]"} <= {word.rstrip(",") for word in said.split()}
    path = tmp_path / "trace.safetensors"
    assert run(["trace", *TWO, "--engine", "labkit", "--ids", "5,6,7", "-o", str(path)]) == 0
    assert [finding.cause for finding in verify_trace(path).findings] == ["no-mask", "erf-gelu"]


def test_invariants_plant_every_fault_given(capsys: Capture) -> None:
    two = ["--plant", "mask-one-ahead:1", "--plant", "padding-attended:2"]
    assert run(["invariants", *two, "--ids", "5,6,7,8"]) == 1
    said = words(capsys.readouterr().out)
    assert "labkit with mask-one-ahead:1, padding-attended:2 planted" in said
    assert {"causality", "padding"} <= set(said.rpartition("broken: ")[2].replace(",", "").split())


@pytest.mark.parametrize("command", ["verify", "invariants", "trace"])
def test_faults_that_cannot_be_planted_together_are_refused(command: str, tmp_path: Path, capsys: Capture) -> None:
    out = ["--engine", "labkit", "-o", str(tmp_path / "trace.safetensors")] if command == "trace" else []
    assert run([command, *out, "--ids", "5,6", "--plant", "no-mask:1", "--plant", "mask-one-ahead:1"]) == 2
    said = capsys.readouterr().err
    assert "block 1, pattern: fault mask-one-ahead cannot be planted beside another that exchanges the same" in said
    assert run([command, *out, "--ids", "5,6", "--plant", "no-mask:0", "--plant", "no-mask"]) == 2
    assert "a fault is planted twice in one block" in capsys.readouterr().err
    assert plantings(["no-mask:0", "no-mask:1"]) == ("no-mask:0", "no-mask:1")


def commands() -> Iterator[tuple[tuple[str, ...], TyperCommand]]:
    top = get_command(app)
    for name, command in top.commands.items():
        for path, each in ((name, each) for each in [command] if not hasattr(each, "commands")):
            yield (path,), each
        for inner, each in getattr(command, "commands", {}).items():
            yield (name, inner), each


@pytest.mark.parametrize(
    ("path", "command"), tuple(commands()), ids=lambda each: " ".join(each) if isinstance(each, tuple) else ""
)
def test_an_option_of_one_value_given_twice_is_refused(
    path: tuple[str, ...], command: TyperCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)  # where one is taken, it may name a file to write
    for option in command.params:
        if not isinstance(option, TyperOption) or option.multiple or option.is_eager:
            continue
        name = option.opts[-1]
        twice = [name, option.secondary_opts[0]] if option.secondary_opts else [name, "1", name, "2"]
        if option.is_flag and not option.secondary_opts:
            continue
        assert run([*path, *twice]) == 2
        said = capsys.readouterr().err
        assert "given more than once, and it holds one value; give it once" in said, said
        assert name in said


def test_an_option_of_several_values_is_not(capsys: Capture) -> None:
    assert run(["generate", "--ids", "5,6", "--ids", "7", "--tokens", "1", "--device", "cpu"]) == 0
    assert run(["verify", "--ids", "5,6", "--device", "cpu", "--device", "cuda"]) == 2
    assert "--device: given more than once" in capsys.readouterr().err
