"""What the command line says of itself: version, documentation, and which checkpoint or vocabulary is the default."""

from pathlib import Path

import pytest

import labkit
from labkit.cli import storage
from labkit.cli.main import run
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
