"""``python -m labkit`` is the command ``labkit``: same output, same codes, the same name in its help."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def module(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A child process, since what runs under ``-m`` is no import."""
    command = [sys.executable, "-m", "labkit", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_help_and_version_under_the_name_of_the_command() -> None:
    done = module("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: labkit [OPTIONS] COMMAND")
    assert "__main__" not in done.stdout
    assert module("generate", "--help").stdout.startswith("Usage: labkit generate ")
    assert module("--version").stdout.startswith("labkit ")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["encode", "It is"], 0, ""),
        (["generat"], 2, "labkit: No such command 'generat'"),
        (["info", "nowhere.safetensors"], 2, "labkit: nowhere.safetensors: no such file"),
        (["verify", "--ids", "5,6", "--tokens", "0", "--plant", "relu"], 1, ""),
    ],
)
def test_exit_codes_and_errors_are_the_commands(arguments: list[str], code: int, told: str) -> None:
    done = module(*arguments)
    assert done.returncode == code
    assert done.stderr.startswith(told)
    assert "Traceback" not in done.stderr


def test_importing_the_module_runs_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", "import labkit.__main__"], cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
