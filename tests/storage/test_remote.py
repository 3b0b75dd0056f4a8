"""The same reader over a network: how many requests, what of a server that has no ranges, of files that change."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from labkit.cli.main import run
from labkit.errors import FileAccessError, FormatError, MissingFileError
from labkit.storage import (
    load_safetensors,
    open_safetensors,
    open_snapshot,
    read_header,
    save_safetensors,
    save_snapshot,
)
from labkit.storage.places import open_source
from labkit.storage.remote import HEAD_NBYTES

TENSORS = {"table": torch.arange(6000.0).reshape(1000, 6), "b": torch.ones(3).bfloat16()}


class Server:
    """A web server on loopback that serves a folder and writes down every request; ``manner`` is how it behaves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[tuple[str, str | None]] = []
        self.sent = 0
        self.manner = "ranges"
        self.tag = '"1"'
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers.get("Range")
        self.requests.append((request.path, asked))
        path = self.folder / request.path.lstrip("/")
        if not path.is_file():
            request.send_error(404)
            return
        if self.manner == "login":
            request.send_error(401)
            return
        data = path.read_bytes()
        begin, end = (int(part) for part in (asked or "bytes=0-").removeprefix("bytes=").split("-"))
        if begin >= len(data):
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(data)}")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        part = data if self.manner == "whole" else data[begin : end + 1]
        shift = 1 if self.manner == "shifted" and begin else 0
        request.send_response(200 if self.manner in ("whole", "mislabelled") else 206)
        if self.manner != "whole":
            request.send_header("Content-Range", f"bytes {begin + shift}-{begin + len(part) - 1 + shift}/{len(data)}")
        request.send_header("Content-Length", str(len(part)))
        request.send_header("ETag", self.tag)
        request.end_headers()
        try:
            request.wfile.write(part[:-1] if self.manner == "cut" and begin else part)
        except (BrokenPipeError, ConnectionResetError):
            return
        self.sent += len(part)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    started = Server(tmp_path)
    yield started
    started.http.shutdown()
    started.http.server_close()


def test_a_small_header_takes_one_request_and_a_row_one(server: Server, tmp_path: Path) -> None:
    tensors = TENSORS | {"large": torch.zeros(HEAD_NBYTES)}
    save_safetensors(tensors, tmp_path / "model.safetensors")
    with open_safetensors(f"{server.url}/model.safetensors") as file:
        assert len(server.requests) == 1
        assert file.mode == "copy"
        assert "cannot be mapped" in file.notes[0]
        begin, _ = file.header.span("table")
        assert file.rows("table", 900, 901).equal(TENSORS["table"][900:901])
        assert server.requests[1:] == [("/model.safetensors", f"bytes={begin + 900 * 24}-{begin + 901 * 24 - 1}")]
        assert file["table"].equal(TENSORS["table"])
        assert len(server.requests) == 3
        assert file.header.name == f"{server.url}/model.safetensors"


def test_a_large_header_takes_two_requests(server: Server, tmp_path: Path) -> None:
    names = {f"model.layers.{i}.some.long.name.weight": torch.zeros(1) for i in range(2000)}
    save_safetensors(names, tmp_path / "model.safetensors")
    header = read_header(f"{server.url}/model.safetensors")
    assert header.header_nbytes > HEAD_NBYTES
    assert len(header.entries) == 2000
    assert len(server.requests) == 2


def test_a_server_without_ranges_is_refused_before_it_has_sent_the_file(server: Server, tmp_path: Path) -> None:
    save_safetensors({"large": torch.zeros(30_000_000)}, tmp_path / "model.safetensors")
    server.manner = "whole"
    with pytest.raises(FileAccessError, match=r"does not answer range requests.*got 200, 1200000\d\d bytes"):
        open_safetensors(f"{server.url}/model.safetensors")
    assert server.sent == 0, "the answer was cut off"


@pytest.mark.parametrize(
    ("manner", "message"),
    [
        ("cut", "cannot fetch|sent another number of bytes"),
        ("shifted", "the file changed on the server"),
        ("mislabelled", "does not answer range requests"),
    ],
)
def test_wrong_answers_are_told(server: Server, tmp_path: Path, manner: str, message: str) -> None:
    save_safetensors(TENSORS | {"large": torch.zeros(HEAD_NBYTES)}, tmp_path / "model.safetensors")
    with open_safetensors(f"{server.url}/model.safetensors") as file:
        server.manner = manner
        with pytest.raises(FileAccessError, match=message):
            file["table"]


def test_a_file_that_changes_on_the_server_is_told(server: Server, tmp_path: Path) -> None:
    save_safetensors(TENSORS | {"large": torch.zeros(HEAD_NBYTES)}, tmp_path / "model.safetensors")
    with open_safetensors(f"{server.url}/model.safetensors") as file:
        server.tag = '"2"'
        with pytest.raises(FileAccessError, match=r"the file changed on the server since it was opened .*\"1\".*\"2\""):
            file["table"]


def test_what_is_not_there_is_told(server: Server, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"no such file on the server .got 404"):
        open_safetensors(f"{server.url}/none.safetensors")
    with pytest.raises(MissingFileError, match=r"no checkpoint here.*/resolve/main"):
        open_snapshot(server.url)
    (tmp_path / "empty.safetensors").write_bytes(b"")
    with pytest.raises(FormatError, match="at least 8 bytes, got 0 bytes"):
        open_safetensors(f"{server.url}/empty.safetensors")
    (tmp_path / "page.safetensors").write_bytes(b"<!DOCTYPE html><html></html>")
    with pytest.raises(FormatError, match="this is a web page"):
        open_safetensors(f"{server.url}/page.safetensors")
    server.manner = "login"
    with pytest.raises(FileAccessError, match=r"the server refused .got 401 Unauthorized.; it needs a login; hf://"):
        open_safetensors(f"{server.url}/page.safetensors")
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(FileAccessError, match=r"cannot fetch: .*; check the address"):
        open_safetensors(f"{server.url}/page.safetensors")


def test_a_snapshot_of_shards(server: Server, tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.full((10,), float(i)) for i in range(6)}
    save_snapshot(tensors, tmp_path, max_shard_nbytes=40)
    with open_snapshot(server.url) as snapshot:
        shards = [path for path, _ in server.requests if path.startswith("/model-")]
        assert len(shards) == len(set(shards)) == 6, "one request a shard"
        assert all(snapshot[name].equal(tensors[name]) for name in tensors)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    index["weight_map"]["t0"] = "model-00009-of-00006.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FormatError, match="shard"):
        open_snapshot(server.url)


def test_a_single_file_snapshot_and_the_command(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_safetensors(TENSORS, tmp_path / "model.safetensors")
    assert len(open_snapshot(server.url)) == 2
    assert len(open_snapshot(f"{server.url}/model.safetensors")) == 2
    assert run(["info", f"{server.url}/model.safetensors"]) == 0
    assert run(["info", server.url]) == 0
    assert "BF16" in capsys.readouterr().out


@pytest.mark.parametrize("system", ["memory", "file"])
def test_other_file_systems_through_fsspec(tmp_path: Path, system: str) -> None:
    save_safetensors(TENSORS, tmp_path / "model.safetensors")
    if system == "memory":
        fsspec.filesystem("memory").pipe("/labkit/model.safetensors", (tmp_path / "model.safetensors").read_bytes())
    url = "memory://labkit/model.safetensors" if system == "memory" else f"file://{tmp_path}/model.safetensors"
    assert load_safetensors(url)["table"].equal(TENSORS["table"])
    with open_safetensors(url) as file:
        assert file.slice("table", 10, 2).tolist() == [10.0, 11.0]
    with pytest.raises(MissingFileError, match="no such file there"):
        open_safetensors(url + ".none")
    with pytest.raises(FileAccessError, match="cannot read: "):
        open_safetensors("nosuchsystem://a/b.safetensors")


def test_a_remote_file_that_shrinks_is_told() -> None:
    system = fsspec.filesystem("memory")
    system.pipe("/labkit/shrinks", bytes(100))
    source = open_source("memory://labkit/shrinks")
    system.pipe("/labkit/shrinks", bytes(50))
    with pytest.raises(
        FileAccessError, match=r"ends inside the range asked for .expected 20 bytes from 40 on, got 10 bytes"
    ):
        source.read_into(40, memoryview(bytearray(20)))
