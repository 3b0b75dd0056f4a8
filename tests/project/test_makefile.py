"""What ``make`` says: of an installation what it is, of a lab that was ended with Ctrl-C nothing."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Stands for the installed command: `lab` ends as labkit's does when Ctrl-C stops it, after a moment.
COMMAND = """#!{python}
import sys, time
if sys.argv[1] == "lab":
    if {code} is not None:
        sys.exit({code})
    try:
        print("open", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.5)
        sys.exit(130)
"""


ALONE = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
"""The environment without what an outer make, which may run these tests, hands on."""


def installed(folder: Path, root: Path, code: int | None) -> Path:
    """A folder with the project's Makefile and a finished environment whose ``labkit lab`` waits, or ends with ``code``."""
    for name in ("Makefile", "requirements.txt", "requirements-vocabulary.txt", "pyproject.toml"):
        shutil.copyfile(root / name, folder / name)
    binaries = folder / ".venv" / "bin"
    binaries.mkdir(parents=True)
    command = binaries / "labkit"
    command.write_text(COMMAND.format(python=sys.executable, code=code))
    command.chmod(0o755)
    (folder / ".venv" / ".ready").touch()
    return folder


def test_ctrl_c_ends_the_lab_without_an_error(tmp_path: Path, root: Path) -> None:
    with subprocess.Popen(
        ["make", "lab"],
        cwd=installed(tmp_path, root, None),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=ALONE,
        text=True,
        start_new_session=True,
    ) as make:
        assert make.stdout is not None
        before = iter(make.stdout.readline, "open\n")
        assert [line for line in before if "***" in line] == []
        os.killpg(make.pid, signal.SIGINT)  # as a terminal does: to make, the shell and labkit alike
        assert make.stdout.read() == ""
    assert make.returncode == -signal.SIGINT


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (2, 2)])
def test_an_error_of_the_lab_stays_one(code: int, ends: int, tmp_path: Path, root: Path) -> None:
    folder = installed(tmp_path, root, code)
    done = subprocess.run(["make", "lab"], cwd=folder, env=ALONE, capture_output=True, text=True, check=False)
    assert done.returncode == ends
    assert ("***" in done.stderr) == (code != 0)


def test_an_installation_says_what_it_does_and_how_large_it_is(root: Path) -> None:
    command = ["make", "--dry-run", "VENV=absent", "verify"]
    done = subprocess.run(command, cwd=root, env=ALONE, capture_output=True, text=True, check=True)
    assert "Installing labkit and all it needs into absent: 1.8 GB" in done.stdout


def test_verify_ends_with_how_to_call_the_command(root: Path, tmp_path: Path) -> None:
    folder = installed(tmp_path, root, 0)
    done = subprocess.run(["make", "verify"], cwd=folder, env=ALONE, capture_output=True, text=True, check=True)
    last = done.stdout.splitlines()[-1]
    assert last == "The command is .venv/bin/labkit; after `. .venv/bin/activate` it is labkit alone"
    readme = (root / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    for call in (".venv/bin/labkit", ". .venv/bin/activate", r".venv\Scripts\labkit", r".venv\Scripts\activate"):
        assert f"`{call}`" in readme


def test_help_names_every_target(root: Path) -> None:
    done = subprocess.run(["make", "help"], cwd=root, env=ALONE, capture_output=True, text=True, check=True)
    told = {line.split()[1] for line in done.stdout.splitlines()}
    (phony,) = [line for line in (root / "Makefile").read_text().splitlines() if line.startswith(".PHONY:")]
    assert told == {*phony.split()[1:]} - {"help"}
