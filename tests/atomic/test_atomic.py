"""The old file or the new one, never less: kill -9 in a loop, a full disk, a read-only folder, two writers at once."""

import os
import random
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from labkit.atomic import appearing, replacing
from labkit.errors import ArgumentError, CheckpointError, FileAccessError, MissingFileError
from labkit.storage import load_safetensors, open_safetensors, save_safetensors

IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
NUMEL = 400_000  # 1.6 MB a tensor: long enough to be killed in the middle

WRITERS = f"""
    import itertools, os, signal, sys
    import numpy as np
    from labkit.storage import save_safetensors
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are buried at once
    print("ready", flush=True)
    for line in sys.stdin:
        first, path = line.rstrip("\\n").split(" ", 1)
        child = os.fork()
        if child == 0:
            for number in itertools.count(int(first)):
                save_safetensors({{name: np.full({NUMEL}, number, dtype=np.float32) for name in "abcd"}}, path)
        print(child, flush=True)
"""


class Writers:
    """A process that starts writers, each of which saves the same file again and again until it is killed."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITERS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._answer() == "ready"

    def start(self, path: Path, first: int) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{first} {path}\n")
        self.process.stdin.flush()
        return int(self._answer())

    def kill(self, writer: int) -> None:
        os.kill(writer, signal.SIGKILL)
        while True:
            try:
                os.kill(writer, 0)
            except ProcessLookupError:
                return
            time.sleep(0.001)

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    started = Writers()
    yield started
    started.process.communicate(timeout=30)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def require_whole(path: Path) -> float:
    """The file is one save, all of it: four tensors of one value."""
    with open_safetensors(path, mode="copy") as file:
        values = {float(value) for tensor in file.values() for value in (tensor.min(), tensor.max())}
    assert len(values) == 1
    return values.pop()


def kill_writers(writers: Writers, path: Path, *, saves: int, rounds: int) -> None:
    """Kill a writer after a random while, again and again, until ``saves`` different saves were found whole."""
    save_safetensors({name: torch.full((NUMEL,), -1.0) for name in "abcd"}, path)
    chance = random.Random(0)
    seen = set()
    for number in range(rounds):
        writer = writers.start(path, number * 1000)
        time.sleep(chance.uniform(0.0, 0.1))
        writers.kill(writer)
        seen.add(require_whole(path))
        if len(seen) >= saves and len(names_in(path.parent)) > 1:
            return
    pytest.fail(f"{rounds} rounds gave {len(seen)} saves and {len(names_in(path.parent)) - 1} killed in the middle")


def test_kill_9_leaves_a_whole_file(tmp_path: Path, writers: Writers) -> None:
    kill_writers(writers, tmp_path / "model.safetensors", saves=6, rounds=400)


@pytest.mark.slow
def test_kill_9_in_a_long_loop(tmp_path: Path, writers: Writers) -> None:
    kill_writers(writers, tmp_path / "model.safetensors", saves=200, rounds=5000)


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "model[1].safetensors"
    orphan = tmp_path / ".model[1].safetensors.123-abcd.labkit-tmp"
    other = tmp_path / ".other.safetensors.123-abcd.labkit-tmp"
    for each in (orphan, other):
        each.write_bytes(b"half")
        os.utime(each, (1, 1))
    save_safetensors({"a": torch.zeros(1)}, path)
    assert names_in(tmp_path) == sorted([other.name, path.name])


@pytest.mark.parametrize("writer", ["dead", "alive"])
def test_folders_of_dead_writers_are_removed_and_of_living_ones_kept(tmp_path: Path, writer: str) -> None:
    process = os.getpid() if writer == "alive" else 4194305  # beyond the kernel's largest number of a process
    draft = tmp_path / f".model.{process}-abcd.labkit-tmp"
    other = tmp_path / ".other.4194305-abcd.labkit-tmp"
    for each in (draft, other):
        each.mkdir()
        (each / "model.safetensors").write_bytes(b"half")
    with appearing(tmp_path / "model") as folder:
        (folder / "a").touch()
    kept = [draft.name] if writer == "alive" else []
    assert names_in(tmp_path) == sorted([*kept, other.name, "model"])


def test_a_folder_held_by_its_writer_is_kept_however_old(tmp_path: Path) -> None:
    with appearing(tmp_path / "model") as first:
        os.utime(first, (1, 1))
        with appearing(tmp_path / "model") as second:
            (second / "a").write_bytes(b"second")
        assert first.is_dir()
        (tmp_path / "model").rename(tmp_path / "moved")
    assert names_in(tmp_path) == ["model", "moved"]


def test_two_writers_at_once(tmp_path: Path, writers: Writers) -> None:
    path = tmp_path / "model.safetensors"
    both = [writers.start(path, 0), writers.start(path, 500_000)]
    deadline = time.monotonic() + 100
    seen: set[bool] = set()
    while len(seen) < 2 and time.monotonic() < deadline:
        if path.exists():
            seen.add(require_whole(path) >= 500_000)
    for writer in both:
        writers.kill(writer)
    require_whole(path)
    assert seen == {False, True}, "both were seen to write"


def test_another_process_keeps_its_map(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_safetensors({"a": torch.full((NUMEL,), 1.0)}, path)
    program = """
        import sys
        from labkit.storage import open_safetensors
        file = open_safetensors(sys.argv[1])
        print("open", flush=True)
        sys.stdin.readline()
        print(float(file["a"].min()), float(file["a"].max()), flush=True)
    """
    reader = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "open\n"
    save_safetensors({"a": torch.full((NUMEL,), 2.0)}, path)
    output, _ = reader.communicate("go\n", timeout=60)
    assert output == "1.0 1.0\n"
    assert float(load_safetensors(path)["a"][0]) == 2.0


@pytest.mark.skipif(not IS_ROOT or sys.platform != "linux", reason="mounting a small file system needs root on Linux")
def test_a_full_disk_leaves_the_old_file_and_no_temporary(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"this system does not let root mount a file system: {mounted.stderr.decode().strip()}")
    try:
        path = disk / "model.safetensors"
        save_safetensors({"a": torch.ones(1000)}, path)
        before = path.read_bytes()
        with pytest.raises(FileAccessError, match="cannot write: No space left on device; the old file is untouched"):
            save_safetensors({"a": torch.zeros(1_000_000)}, path)
        assert path.read_bytes() == before
        assert names_in(disk) == [path.name]
        save_safetensors({"a": torch.zeros(1000)}, path)
        assert float(load_safetensors(path, mode="copy")["a"].sum()) == 0.0
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX users")
def test_a_read_only_folder_is_told(tmp_path: Path) -> None:
    """Run as a user without root's rights, because root may write anywhere."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "model.safetensors"
    save_safetensors({"a": torch.ones(3)}, path)
    before = path.read_bytes()
    for each in (tmp_path, *tmp_path.parents):
        if each.owner() == folder.owner() and "pytest" in str(each):
            each.chmod(each.stat().st_mode | stat.S_IXOTH | stat.S_IXGRP)
    folder.chmod(0o555)
    program = f"""
        import torch
        from labkit.errors import FileAccessError
        from labkit.storage import save_safetensors
        import os
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            save_safetensors({{"a": torch.zeros(3)}}, {str(path)!r})
        except FileAccessError as error:
            print(error)
    """
    try:
        told = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
        )
    finally:
        folder.chmod(0o755)
    assert f"{folder}: the folder cannot be written to; name another" in told.stdout
    assert path.read_bytes() == before
    assert names_in(folder) == [path.name]


def test_file_and_folder_are_synced_before_and_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def record_sync(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def record_replace(source: Path, target: Path) -> Path:
        done.append("rename")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "replace", record_replace)
    save_safetensors({"a": torch.zeros(3)}, tmp_path / "model.safetensors")
    assert done == ["file", "rename", "folder"]


@pytest.mark.parametrize("failing", [(os, "fsync"), (Path, "replace")])
def test_no_temporary_is_left_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: tuple[object, str]
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    path = tmp_path / "model.safetensors"
    path.write_bytes(b"old")
    with monkeypatch.context() as patched:
        patched.setattr(*failing, fail)
        with pytest.raises(FileAccessError, match="cannot write: Input/output error"):
            save_safetensors({"a": torch.zeros(3)}, path)
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == [path.name]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("x")])
def test_an_interrupt_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    def interrupted() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise error

    path = tmp_path / "model.safetensors"
    path.write_bytes(b"old")
    with pytest.raises(type(error)):
        interrupted()
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == [path.name]


@pytest.mark.parametrize("name", ["😀" * 60 + ".js", "x" * 255, "é" * 127])
def test_the_longest_names_that_a_folder_takes(tmp_path: Path, name: str) -> None:
    with replacing(tmp_path / name) as file:
        file.write(b"new")
    assert names_in(tmp_path) == [name]


def test_a_pipe_stays_one_and_gets_the_content(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    with replacing(pipe) as file:
        file.write(b"....")
        file.seek(0)
        file.write(b"head")
    reader.join()
    assert read == [b"head"]
    assert names_in(tmp_path) == ["pipe"]
    assert pipe.is_fifo()


@pytest.mark.skipif(not IS_ROOT or sys.platform != "linux", reason="making a device needs root on Linux")
def test_a_device_stays_one(tmp_path: Path) -> None:
    null = tmp_path / "null"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        null.write_bytes(b"")
    except OSError as error:
        pytest.skip(f"this system does not let root mount or make a device: {error}")
    with replacing(null) as file:
        file.write(b"new")
    assert null.is_char_device()
    assert names_in(tmp_path) == ["null"]


def test_a_descriptor_is_written_to_where_it_stands(tmp_path: Path) -> None:
    log = tmp_path / "log"
    link = tmp_path / "link"
    link.symlink_to("/dev/fd/1")
    program = """
        import sys
        from labkit.atomic import replacing
        print("first")
        for path in sys.argv[1:]:
            with replacing(path) as file:
                file.write(path.encode() + b"\\n")
        print("last")
    """
    log.write_text("old\n")
    places = ["/dev/stdout", "/dev/fd/1", str(link)]
    with log.open("a") as out:
        subprocess.run([sys.executable, "-c", textwrap.dedent(program), *places], stdout=out, check=True)
    assert log.read_text().splitlines() == ["old", "first", *places, "last"]
    assert names_in(tmp_path) == ["link", "log"]


@pytest.mark.parametrize("place", ["/", "folder", "folder/", "."])
def test_a_folder_is_no_file(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileAccessError, match="it is a folder"), replacing(place):
        pass


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fill(error: Exception | None) -> None:
        with appearing(tmp_path / "model") as folder:
            (folder / "a").write_bytes(b"new")
            assert names_in(tmp_path) != ["model"]
            if error is not None:
                error.__dict__.update(where=folder / "a")
                raise error

    with pytest.raises(FileAccessError, match=f"^{tmp_path}/model: cannot write: No space left on device; nothing was"):
        fill(OSError(28, "No space left on device"))
    with pytest.raises(FileAccessError, match=f"^{tmp_path}/model/a: cannot write; nothing was left"):
        fill(FileAccessError("cannot write", fix="the old file is untouched"))
    with pytest.raises(CheckpointError, match=f"^{tmp_path}/model/a: it differs; mend it"):
        fill(CheckpointError("it differs", fix="mend it"))
    assert names_in(tmp_path) == []
    fill(None)
    assert names_in(tmp_path) == ["model"]
    with pytest.raises(ArgumentError, match="the folder is already there"):
        fill(None)
    with pytest.raises(MissingFileError, match="no such folder"), appearing(tmp_path / "no" / "model"):
        pass
