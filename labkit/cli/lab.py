"""``labkit lab``: JupyterLab on the notebooks."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.console import complain
from labkit.errors import ArgumentError, MissingFileError

FIRST_PORT = 8888
PORTS = 64
READY_SECONDS = 60


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    app.command()(lab)


def lab(
    folder: Annotated[Path | None, typer.Argument(help="The notebooks' folder (default: labkit's own).")] = None,
    *,
    port: Annotated[int | None, typer.Option(help="The port to listen on (default: the first free one).")] = None,
    browser: Annotated[bool, typer.Option(help="Open a browser; without one the address is printed.")] = True,
) -> int:
    """Open JupyterLab on the notebooks; Ctrl-C ends it."""
    notebooks = find_notebooks(folder)
    opened = browser and has_browser()
    chosen, token = free_port(port), secrets.token_hex(16)
    first = "00_start.ipynb" if (notebooks / "00_start.ipynb").is_file() else ""
    command = server_command(notebooks, first, port=chosen, browser=opened)
    environment = {**os.environ, "JUPYTER_TOKEN": token}  # not on the command line, which others can read
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever stops us must not leave the server behind
    server = subprocess.Popen(command, env=environment)
    try:
        wait_until_ready(server, chosen)
        if server.poll() is None:
            print(f"JupyterLab is at {address(chosen, first, token)}\nCtrl-C ends it.", flush=True)
        return server.wait()
    except KeyboardInterrupt:
        complain("stopping JupyterLab")
        server.terminate()
        server.wait()
        return 130


def address(port: int, first: str, token: str) -> str:
    """Where the first notebook is.

    >>> address(8888, "00_start.ipynb", "secret")
    'http://127.0.0.1:8888/lab/tree/00_start.ipynb?token=secret'
    """
    return f"http://127.0.0.1:{port}/lab{f'/tree/{first}' if first else ''}?token={token}"


def server_command(notebooks: Path, first: str, *, port: int, browser: bool) -> list[str]:
    """The command line of a JupyterLab on loopback that asks nothing."""
    command = [
        *(sys.executable, "-m", "jupyterlab", "--LabApp.log_level=WARN"),
        "--ServerApp.log_level=WARN",
        f"--ServerApp.root_dir={notebooks}",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--ServerApp.answer_yes=True",
        f"--LabApp.default_url=/lab/tree/{first}" if first else "--LabApp.default_url=/lab",
        "--LabApp.extension_manager=readonly",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.news_url=None",
    ]
    command += [] if browser else ["--no-browser"]
    command += ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return command


def find_notebooks(folder: Path | None) -> Path:
    """The folder to open: the one given, or the notebooks beside the package, or those of the current folder."""
    if folder is not None:
        if not folder.is_dir():
            raise MissingFileError("there is no such folder", where=folder)
        return folder.resolve()
    places = (Path(__file__).resolve().parents[2] / "notebooks", Path.cwd() / "notebooks")
    for place in places:
        if (place / "00_start.ipynb").is_file():
            return place
    raise MissingFileError(
        "labkit's notebooks are not installed",
        where=places[1],
        fix="clone the project, or name a folder: labkit lab FOLDER",
    )


def has_browser() -> bool:
    """Whether a browser with a display can be opened here."""
    import webbrowser

    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def free_port(wanted: int | None) -> int:
    """The wanted port, or the first free one from 8888 on; ArgumentError where none is free."""
    candidates = [wanted] if wanted is not None else list(range(FIRST_PORT, FIRST_PORT + PORTS))
    for port in candidates:
        if not 0 < port < 1 << 16:
            raise ArgumentError("no such port", where="--port", expected="1 to 65535", got=port)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ArgumentError("no free port", where="--port", got=f"{candidates[0]} to {candidates[-1]}", fix="name another")


def wait_until_ready(server: "subprocess.Popen[bytes]", port: int) -> None:
    """Return once the server answers, or has ended."""
    end = time.monotonic() + READY_SECONDS
    while server.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
