"""`labkit lab`: finds the notebooks, prints an address that answers, ends when told, and says what is wrong."""

import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from labkit.cli.lab import find_notebooks, free_port, has_browser, server_command
from labkit.cli.main import run
from labkit.errors import ArgumentError, MissingFileError

COMMAND = [sys.executable, "-c", "from labkit.cli import main; main()", "lab", "--no-browser"]


def test_it_finds_the_notebooks_beside_the_package(root: Path, tmp_path: Path) -> None:
    assert find_notebooks(None) == root / "notebooks"
    assert find_notebooks(tmp_path) == tmp_path
    with pytest.raises(MissingFileError, match="there is no such folder"):
        find_notebooks(tmp_path / "none")


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lab", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_port_in_use_is_passed_over_or_refused() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(ArgumentError, match="no free port"):
            free_port(port)
    with pytest.raises(ArgumentError, match="no such port"):
        free_port(70_000)


def test_without_a_display_no_browser_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not has_browser()


def test_the_server_asks_nothing_of_the_network(tmp_path: Path) -> None:
    command = server_command(tmp_path, "", port=1234, browser=False)
    for setting in (
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
        "--ServerApp.ip=127.0.0.1",
        "--no-browser",
    ):
        assert setting in command
    assert not [part for part in command if "token" in part.lower()]


def test_the_address_answers_and_the_server_ends_with_the_command(root: Path) -> None:
    with subprocess.Popen(COMMAND, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            address = re.search(
                r"http://127\.0\.0\.1:(\d+)/lab/tree/00_start\.ipynb\?token=\w+", server.stdout.readline()
            )
            assert address is not None
            with urllib.request.urlopen(address[0], timeout=30) as answer:
                assert answer.status == 200
        finally:
            server.send_signal(signal.SIGTERM)
            code = server.wait(30)
    assert code == 130
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address[0], timeout=5)
