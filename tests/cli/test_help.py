"""What the command line says of itself: version, documentation, and which checkpoint or vocabulary is the default."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import labkit
from labkit.cli import storage
from labkit.cli.main import app, run
from labkit.load import embedded as embedded_folder

Capture = pytest.CaptureFixture[str]


def words(text: str) -> str:
    return " ".join(text.split())


def test_version(capsys: Capture) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"labkit {labkit.__version__}\n"


def test_help_names_every_page_of_the_documentation(root: Path, capsys: Capture) -> None:
    assert run(["--help"]) == 0
    end = words(capsys.readouterr().out).partition("Documentation: ")[2]
    assert {page.name for page in (root / "docs").glob("*.md")} == {
        name.strip(".,") for name in end.split() if name.strip(".,").endswith(".md")
    } - {"README.md"}


def test_without_a_command_the_help_is_shown_and_nothing_complained_of(capsys: Capture) -> None:
    assert run([]) == 2
    out, err = capsys.readouterr()
    assert "Commands" in out + err
    assert "labkit: \n" not in err


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("verify", "Without a folder the embedded checkpoint runs, with its own vocabulary"),
        ("generate", "Without a folder the embedded checkpoint runs, with its own vocabulary"),
        ("encode", "Without --tokenizer GPT-2's own vocabulary is used."),
        ("decode", "--tokenizer labkit/data/tiny"),
        ("merges", "--tokenizer labkit/data/tiny"),
    ],
)
def test_help_says_what_is_used_by_default_and_how_to_use_the_other(command: str, told: str, capsys: Capture) -> None:
    assert run([command, "--help"]) == 0
    assert told in words(capsys.readouterr().out)


@pytest.mark.parametrize("command", ["info", "tensors", "stats", "bytes", "check", "inventory"])
def test_the_embedded_checkpoint_is_looked_at_by_default(command: str, embedded: Path, capsys: Capture) -> None:
    assert run([command]) == 0
    default = capsys.readouterr().out
    assert run([command, str(embedded)]) == 0
    assert capsys.readouterr().out == default
    assert embedded_folder() == Path(storage.EMBEDDED)


def commands() -> Iterator[tuple[str, ...]]:
    """Every command line that has a help of its own."""
    yield ()
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        yield (name,)
        yield from ((name, each) for each in getattr(command, "commands", ()))


@pytest.mark.parametrize("line", [*commands()], ids=" ".join)
def test_every_option_can_be_read_in_eighty_columns(
    line: tuple[str, ...], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")  # typer's own word for it
    assert run([*line, "--help"]) == 0
    text = capsys.readouterr().out
    command: Any = typer.main.get_command(app)
    for name in line:
        command = command.commands[name]
    options = [each for each in command.params if each.param_type_name == "option"]
    named = set(re.findall(r"(?<![\w-])--?[\w-]*\w", text))
    assert [name for each in options for name in (*each.opts, *each.secondary_opts) if name not in named] == []
    assert max(map(len, text.splitlines())) <= 80
    for name, each in getattr(command, "commands", {}).items():
        assert words(each.callback.__doc__ if each.callback else each.help) in words(text), name
