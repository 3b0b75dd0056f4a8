"""The command as a shell runs it: outputs that are inputs, pipes, full and closed streams, signals, odd names.

Each row is a line of bash and what it must end with. ``$L`` is the command, ``$S`` a safetensors file in the current
folder, ``$T`` the folder; a line may look at what is left. Where root could harm the system's own devices, copies of
them are used.
"""

import inspect
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from labkit.cli import places
from labkit.cli.main import app

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX users, signals and pipes")

COMMAND = Path(sys.executable).parent / "labkit"


@pytest.fixture
def place(tmp_path: Path, embedded: Path) -> Path:
    """A folder with copies of the embedded checkpoint's files and a few more."""
    for each in embedded.iterdir():
        shutil.copy(each, tmp_path)
    (tmp_path / "text.npy").write_text("some text")
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "odd").write_text("a shard")
    (tmp_path / "shards" / "model.safetensors.index.json").write_text('{"weight_map": {"a": "odd"}}')
    (tmp_path / "link.json").symlink_to("config.json")
    return tmp_path


def bash(line: str, place: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The line run by bash in ``place``."""
    names = {"L": str(COMMAND), "S": "model.safetensors", **environment}
    return subprocess.run(
        ["bash", "-c", line], cwd=place, env={**os.environ, **names}, capture_output=True, text=True, timeout=120
    )


def contents(place: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in place.rglob("*") if each.is_file()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("info $S --json $S", "$S: the output is the input; name another file"),
        ("info $S --json ./$S", "the output is the input"),
        ("info . --json config.json", "config.json: the output is the input"),
        ("info . --json link.json", "link.json: the output is the input"),
        ("export $S ln_f.bias -o $S", "the output is the input"),
        ("encode --file text.npy --out text.npy", "the output is the input"),
        ("encode hi --tokenizer . --json merges.txt", "the output is the input"),
        ("diff a $S --json $S", "the output is the input"),
        ("info shards --json shards/odd", "the output is the input"),
        ("compare $S b --json $S", "the output is the input"),
        ("parity text.npy --json text.npy", "the output is the input"),
        ("trace . -o $S", "the output is the input"),
        ("verify . --certificate new --html new", "new: two outputs have this name"),
        ("verify . --json - --certificate -", "--certificate: only --json goes to standard output; name a file"),
        ("verify . --html -", "--html: only --json goes to standard output"),
        ("verify nope --html no/page", "no: no such folder; make it first"),
        ("inventory nope --json .", ".: it is a folder"),
        ("info $S --json /", "/: it is a folder"),
        ("info nope --json $S/new", "$S: no such folder"),
        ("bench load nope --json no/new", "no: no such folder"),
        ("convert nope no/new", "no: no such folder"),
        ("convert . .", ".: the folder is already there"),
        ("train-bpe nope --vocab-size 300 -o .", ".: the folder is already there"),
        ("selftest --keep text.npy/new", "text.npy: it is a file (expected a folder)"),
        ("fetch a/b --dir text.npy", "text.npy: it is a file (expected a folder)"),
        ("info $N", "File name too long"),
        ("check $N", "File name too long"),
        ("verify $N", "File name too long"),
        ("encode hi --tokenizer $N", "File name too long"),
        ("info $S --json $N", "File name too long"),
    ],
)
def test_a_place_that_cannot_be_is_told_and_nothing_is_touched(arguments: str, message: str, place: Path) -> None:
    """Before any work: where the input is "nope", it was not looked for."""
    before = contents(place)
    done = bash(f"$L {arguments}", place, N="n" * 300)
    assert (done.returncode, done.stdout) == (2, "")
    assert message.replace("$S", "model.safetensors") in done.stderr
    assert done.stderr.count("\n") == 1
    assert contents(place) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "train-bpe text.npy --vocab-size 300 -o new",
            "new/vocab.json: cannot write: File too large; nothing was left",
        ),
        ("convert . new --no-check", "new/model.safetensors: cannot write: File too large; nothing was left"),
        ("info $S --json new", "new: cannot write: File too large; the old file is untouched"),
        ("selftest --keep new", ".safetensors: cannot write: File too large"),
    ],
)
def test_a_full_disk_is_told_of_the_place_that_was_named(arguments: str, message: str, place: Path) -> None:
    """A limit on the size of files stands in for it."""
    done = bash(f"ulimit -f 1; $L {arguments}", place)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("labkit: new")
    assert done.stderr.endswith(f"{message}\n")
    assert [each.name for each in place.glob(".*")] == []
    assert not (place / "new" / "vocab.json").exists()
    assert not (place / "new" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("line", "out"),
    [
        ("echo old > log; $L encode hi --json /dev/stdout >> log; head -2 log", "old\n{\n"),
        ("$L encode hi --json /dev/fd/3 3>&1 | head -1", "{\n"),
        ("$L encode hi --json >(head -1 > got); until [ -s got ]; do sleep 0.1; done; cat got", "{\n"),
        (
            "mkfifo p; timeout 30 cat p > got & $L encode hi --json p; wait; head -1 got; test -p p && echo pipe",
            "{\npipe\n",
        ),
        (
            "mkfifo p; timeout 30 cat p > got & $L export $S transformer.ln_f.bias -o p > log; wait; head -c 6 got | tail -c 5",
            "NUMPY",
        ),
        ("$L encode hi --json $N.js; head -1 $N.js; ls -a | grep -c labkit-tmp", "{\n0\n"),
        ("$L encode --json - hi | head -1", "{\n"),
        ("PYTHONIOENCODING=ascii $L decode 33768 98", "日"),
        ("PYTHONIOENCODING=ascii $L merges 日 | head -1", "piece \\u65e5"),
        ("PYTHONIOENCODING=ascii $L encode é --json - | sed -n 2p", '  "text": "\\u00e9",\n'),
        ("$L info $'\\xff.safetensors' --json got; echo $?", "2\n"),
    ],
)
def test_outputs_of_every_kind(line: str, out: str, place: Path) -> None:
    done = bash(line, place, N="😀" * 60)
    assert done.stdout.startswith(out), done.stderr


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("$L check $S | head -c0; exit ${PIPESTATUS[0]}", 141, ""),
        ("$L encode hi | head -c0; exit ${PIPESTATUS[0]}", 141, ""),
        ("$L decode 33768 | head -c0; exit ${PIPESTATUS[0]}", 141, ""),
        ("$L --help | head -c0; exit ${PIPESTATUS[0]}", 141, ""),
        ("PYTHONUNBUFFERED=1 $L check $S | head -c0; exit ${PIPESTATUS[0]}", 141, ""),
        ("$L info $S > /dev/full", 2, "standard output: cannot write: No space left on device"),
        ("$L encode hi > /dev/full", 2, "standard output: cannot write: No space left on device"),
        ("$L --version > /dev/full", 2, "standard output: cannot write: No space left on device"),
        ("$L info $S >&-", 2, "standard output: cannot write: Bad file descriptor"),
        ("$L encode hi >&-", 2, "standard output: cannot write: Bad file descriptor"),
        ("$L encode <&-", 2, "standard input: cannot read: Bad file descriptor"),
        ("$L info nope 2> /dev/full", 2, ""),
        ("$L info nope 2>&-", 2, ""),
        ("$L info nope <&- >&- 2>&-", 2, ""),
        ("$L generate It --tokens 2 2> /dev/full > /dev/null", 0, ""),
    ],
)
def test_streams_that_are_full_closed_or_not_read(line: str, code: int, message: str, place: Path) -> None:
    done = bash(line, place)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.removeprefix("labkit: ").rstrip("\n") == message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("seconds", [0.15, 0.25, 1.0, 2.0])
def test_a_signal_ends_the_command_in_one_line(number: signal.Signals, seconds: float, place: Path) -> None:
    """While typer is imported, and torch, and in the midst of work; Python's own first moments are not labkit's."""
    command = [str(COMMAND), "bench", "storage", "--json", "new"]
    started = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(seconds)
    started.send_signal(number)
    out, err = started.communicate(timeout=60)
    assert (started.returncode, out) == (128 + number, "")
    assert err == ("labkit: interrupted\n" if number == signal.SIGINT else f"labkit: ended by {number.name}\n")


def test_an_import_is_not_broken_off(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import os, time; os.kill(os.getpid(), 2); time.sleep(0.1); whole = True")
    program = """if True:
        import sys, time
        from labkit.cli import entry
        entry._catch_signals()
        try:
            import slow
            time.sleep(60)
        except entry.Stopped as stop:
            print(sys.modules["slow"].whole, stop.code)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True 130\n", "")


def test_a_conversion_that_is_ended_leaves_nothing(place: Path) -> None:
    started = subprocess.Popen([str(COMMAND), "convert", ".", "new"], cwd=place, stderr=subprocess.PIPE, text=True)
    while not (drafts := list(place.glob(".new.*.labkit-tmp"))) and started.poll() is None:
        time.sleep(0.01)
    started.terminate()
    assert started.communicate(timeout=60)[1] == "labkit: ended by SIGTERM\n"
    assert started.returncode == 128 + signal.SIGTERM
    assert drafts
    assert list(place.glob(".*")) == []
    assert not (place / "new").exists()


def test_a_signal_that_nohup_ignores_stays_ignored(place: Path) -> None:
    line = ["bash", "-c", f"trap '' HUP; exec {COMMAND} encode"]
    started = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    time.sleep(0.5)
    started.send_signal(signal.SIGHUP)
    assert started.communicate("hi", timeout=60)[0] == "5303\n"
    assert started.returncode == 0


def commands(group: Any) -> Iterator[Any]:
    for each in group.commands.values():
        yield from commands(each) if hasattr(each, "commands") else [each]


READ = {
    *(
        "path",
        "paths",
        "a",
        "b",
        "names",
        "folder",
        "source",
        "file",
        "files",
        "actual",
        "expected",
        "config",
        "tokenizer",
    ),
    *("model", "trace", "recheck", "from_dumps", "batch_file"),
}


def test_every_place_among_the_parameters_is_known_as_read_or_written() -> None:
    written = {*places.FILES, *places.FOLDERS}
    assert not READ & written
    found = set()
    for command in commands(typer.main.get_command(app)):
        assert inspect.unwrap(command.callback) is not command.callback, f"{command.name} checks no places"
        types = inspect.get_annotations(inspect.unwrap(command.callback))
        for each in command.params:
            told = f"{each.metavar} {each.help}"
            if "Path" in str(types.get(each.name)) or re.search(r"FILE|FOLDER|DIR|PATH|[Ww]rite|this file", told):
                found.add(each.name)
                assert each.name in READ | written, f"{command.name}: is {each.name} read or written?"
    assert found >= written
