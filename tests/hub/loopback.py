"""A hub on loopback: repositories from memory, with the faults of a bad connection at will."""

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c0ffee" + "0" * 34


class Hub:
    """What is served, what goes wrong, and what was asked for."""

    def __init__(self, files: dict[str, bytes], *, repository: str = "someone/tiny-gpt2") -> None:
        self.repository = repository
        self.files = files
        self.large = {name for name in files if name.endswith((".safetensors", ".bin"))}
        self.cut_at: dict[str, list[int]] = {}  # file -> bytes after which each of the next transfers is cut
        self.wrong: set[str] = set()  # files served with one byte changed
        self.status: int | None = None  # answers everything
        self.requests: list[str] = []
        self.sent: Counter[str] = Counter()  # bytes sent of each file
        self.address = ""

    def listing(self) -> dict[str, Any]:
        return {
            "_id": "0",
            "id": self.repository,
            "modelId": self.repository,
            "private": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "sha": COMMIT,
            "siblings": [self._sibling(name, content) for name, content in self.files.items()],
        }

    def _sibling(self, name: str, content: bytes) -> dict[str, Any]:
        blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
        sibling: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": blob}
        if name in self.large:
            digest = hashlib.sha256(content).hexdigest()
            sibling["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
        return sibling

    def etag(self, name: str) -> str:
        content = self.files[name]
        if name in self.large:
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub, path = self.hub, self.path.split("?")[0]
        hub.requests.append(f"{self.command} {path}")
        if hub.status is not None:
            return self._plain(hub.status, b"{}", body=body)
        if path in (f"/api/models/{hub.repository}", f"/api/models/{hub.repository}/revision/main"):
            return self._plain(200, json.dumps(hub.listing()).encode(), body=body)
        prefix = f"/{hub.repository}/resolve/{COMMIT}/"
        if path.startswith(prefix) and path.removeprefix(prefix) in hub.files:
            return self._file(path.removeprefix(prefix), body=body)
        return self._plain(404, b'{"error": "not found"}', body=body)

    def _plain(self, status: int, content: bytes, *, body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _file(self, name: str, *, body: bool) -> None:
        hub = self.hub
        content = hub.files[name]
        if name in hub.wrong:
            content = content[:-1] + bytes([content[-1] ^ 1])
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hub.etag(name)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if not body:
            return
        cuts = hub.cut_at.get(name, [])
        end = min(cuts.pop(0), len(content)) if cuts else len(content)
        self.wfile.write(content[start:end])
        hub.sent[name] += max(end - start, 0)
        if end < len(content):
            self.close_connection = True
            self.connection.close()


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve ``hub`` at ``hub.address`` while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
