"""A JupyterLab on loopback for the browser tests: a token, temporary folders, nothing of the user's settings."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

READY_SECONDS = 60
SETTINGS = {
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {"fetchNews": "false"},
    "@jupyterlab/notebook-extension/tracker.jupyterlab-settings": {"windowingMode": "none"},
}


@dataclass(frozen=True)
class Lab:
    """A running server: where it is, and the folder that it serves."""

    address: str
    token: str
    folder: Path


@contextlib.contextmanager
def running_lab(place: Path, notebooks: Path) -> Iterator[Lab]:
    """JupyterLab on a copy of ``notebooks``, everything of it under ``place``."""
    folder = place / "notebooks"
    shutil.copytree(notebooks, folder, ignore=shutil.ignore_patterns("*.py", ".*", "__pycache__"))
    for name, settings in SETTINGS.items():
        file = place / "settings" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(16)
    lab = Lab(f"http://127.0.0.1:{port}", token, folder)
    with (place / "server.log").open("w") as log:
        server = subprocess.Popen(_command(folder, port), env=_environment(place, token), stdout=log, stderr=log)
        try:
            _wait(lab, server)
            yield lab
        finally:
            request = urllib.request.Request(f"{lab.address}/api/shutdown?token={token}", method="POST")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(request, timeout=10).close()
            try:
                server.wait(15)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _command(folder: Path, port: int) -> list[str]:
    root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return [
        *(sys.executable, "-m", "jupyterlab", "--no-browser"),
        f"--ServerApp.root_dir={folder}",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--LabApp.expose_app_in_browser=True",
        "--LabApp.extension_manager=readonly",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.news_url=None",
        *root,
    ]


def _environment(place: Path, token: str) -> dict[str, str]:
    folders = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    return {**os.environ, **{name: str(place / each) for name, each in folders.items()}, "JUPYTER_TOKEN": token}


def _wait(lab: Lab, server: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        assert server.poll() is None, "JupyterLab ended while starting"
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{lab.address}/api/status?token={lab.token}", timeout=2).close()
            return
        time.sleep(0.2)
    raise TimeoutError("JupyterLab did not answer")
