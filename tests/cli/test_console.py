"""Where text goes: whole lines into a pipe, tables that fit a terminal, and control characters that never reach one."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from rich.table import Table

from labkit.cli.console import show, show_text
from labkit.cli.main import run

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Callable[[], None]:
    """Makes standard output look like a terminal of 80 columns without colours."""

    def pretend() -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("TERM", "dumb")

    return pretend


def long_table() -> Table:
    table = Table(box=None)
    for number in range(9):
        table.add_column(f"column{number}", no_wrap=True)
    table.add_row(*("x" * 200 for _ in range(9)))
    return table


def test_a_pipe_gets_tables_and_lines_whole(capsys: Capture) -> None:
    prose = "word " * 5000
    show(long_table(), prose)
    heads, cells, line = capsys.readouterr().out.rstrip("\n").split("\n")
    assert heads.split() == [f"column{number}" for number in range(9)]
    assert cells.split() == ["x" * 200] * 9
    assert line == prose


def test_a_terminal_gets_lines_of_its_width(capsys: Capture, terminal: Callable[[], None]) -> None:
    terminal()
    show("word " * 100)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "--ids", "5,6,7", "--tokens", "2"],
        ["verify", "--ids", "5,6,7", "--tokens", "0", "--plant", "no-mask"],
        ["faults", "--only", "positions-ignore-padding", "--only", "erf-gelu", "--prompt", "a", "--no-floors"],
        ["doctor"],
        ["encode", "a text of some words, so that its tokens have places of two digits", "--show"],
    ],
    ids=lambda arguments: " ".join(arguments[:3]),
)
def test_no_line_in_a_pipe_depends_on_a_width(arguments: list[str], capsys: Capture, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    run(arguments)
    narrow = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "300")
    run(arguments)
    assert capsys.readouterr().out == narrow
    assert "…" not in narrow


def test_the_stage_table_fits_a_terminal_uncut(capsys: Capture, terminal: Callable[[], None]) -> None:
    terminal()
    assert run(["verify", "--ids", "5,6,7", "--tokens", "2", "--plant", "no-mask"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    heads = next(line for line in lines if line.startswith("stage"))
    assert heads.split() == ["stage", "max_abs", "max_rel", "ulp", "budget", "used", "here", "verdict"]
    row = next(line for line in lines if line.startswith("h.3.attn.pattern"))
    assert len(row.split()) == 9
    assert row.split()[3] == ">1e4"
    assert "…" not in "".join(lines)


def test_the_fault_table_fits_a_terminal_uncut(capsys: Capture, terminal: Callable[[], None]) -> None:
    terminal()
    faults = ["--only", "positions-ignore-padding", "--only", "bfloat16-weights-attn.c_proj"]
    assert run(["faults", *faults, "--prompt", "a b c", "--no-floors"]) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["fault", "outcome", "named", "effect", "floor", "c", "n", "4", "3", "1", "5"]
    assert "c cosine 0.997, n nmse 1e-2" in " ".join(lines)
    assert "…" not in "".join(lines)


def test_a_terminal_never_gets_control_characters(capsys: Capture, terminal: Callable[[], None]) -> None:
    show_text("a\x1b[31m\n")
    assert capsys.readouterr().out == "a\x1b[31m\n"
    terminal()
    show_text("a\x1b[31m\n")
    assert capsys.readouterr().out == "a\\x1b[31m\n"


def test_decode_gives_exact_bytes_to_a_pipe_and_a_whole_line_to_a_terminal(
    capsys: Capture, terminal: Callable[[], None]
) -> None:
    assert run(["decode", "15496"]) == 0
    assert capsys.readouterr().out == "Hello"
    terminal()
    assert run(["decode", "15496"]) == 0
    assert capsys.readouterr().out == "Hello\n"
