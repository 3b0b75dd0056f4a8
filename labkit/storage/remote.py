"""A safetensors file at an address, read by ranges: the header in one or two requests, a tensor or a row in one.

In: an address. Out: the same ``ByteSource`` that a local file is. ``http`` and ``https`` are spoken here, so that a server
that ignores ranges is noticed before it sends the whole file; every other kind (``s3``, ``hf``, ``gs``, ``file`` …) goes
through fsspec, which needs the package of that kind (s3fs, huggingface_hub, gcsfs …).
Source: RFC 9110, section 14, for ranges.
"""

import re
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from typing import Any

from labkit.errors import FileAccessError, MissingFileError
from labkit.storage.places import too_large
from labkit.storage.sources import ByteSource

HEAD_NBYTES = 1 << 16
"""Bytes of the first request: enough for the header of most files."""
TIMEOUT_S = 30.0
"""Seconds without an answer after which a request is given up."""
_CONTENT_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-([0-9]{1,18})|\*)/([0-9]{1,18})")


def open_remote(url: str) -> ByteSource:
    """The file at an address, open for reading."""
    return HttpFile(url) if url.lower().startswith(("http://", "https://")) else FsspecFile(url)


class HttpFile:
    """A file on a web server that answers range requests; raises ``FileAccessError`` where it does not."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._nbytes: int | None = None
        self._tag: str | None = None
        self._head = self._fetch(0, HEAD_NBYTES)

    @property
    def name(self) -> str:
        """The address as it was given."""
        return self._url

    @property
    def nbytes(self) -> int:
        """Size in bytes, as the server gave it with the first range."""
        return self._nbytes or 0

    def read_into(self, begin: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``begin`` on, by one request unless they came with the first."""
        end = begin + len(buffer)
        data = self._head[begin:end] if end <= len(self._head) else self._fetch(begin, end)
        if len(data) != len(buffer):
            raise FileAccessError(
                "the server sent another number of bytes than asked for",
                where=self._url,
                expected=f"{len(buffer)} bytes at [{begin}, {end})",
                got=f"{len(data)} bytes",
                fix="try again",
            )
        buffer[:] = data

    def close(self) -> None:
        """Nothing stays open between requests."""

    def _fetch(self, begin: int, end: int) -> bytes:
        request = urllib.request.Request(self._url, headers={"Range": f"bytes={begin}-{end - 1}"})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                self._check_answer(response, begin)
                data: bytes = response.read(end - begin + 1)
                return data
        except urllib.error.HTTPError as error:
            return self._explain(error)
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise FileAccessError(
                f"cannot fetch: {reason}", where=self._url, fix="check the address and the network"
            ) from error

    def _check_answer(self, response: HTTPResponse, begin: int) -> None:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if response.status != 206 or match is None or match[1] is None:
            raise FileAccessError(
                "the server does not answer range requests, so every read would download the whole file",
                where=self._url,
                expected="206 with Content-Range",
                got=f"{response.status}, {response.headers.get('Content-Length', '?')} bytes",
                fix="download the file and open it here",
            )
        total, tag = int(match[3]), response.headers.get("ETag")
        if self._nbytes is None:
            self._nbytes, self._tag = total, tag
        if int(match[1]) != begin or total != self._nbytes or tag != self._tag:
            raise FileAccessError(
                "the file changed on the server since it was opened",
                where=self._url,
                expected=f"{self._nbytes} bytes from {begin} on, {self._tag}",
                got=f"{total} bytes from {match[1]} on, {tag}",
                fix="open it again",
            )

    def _explain(self, error: urllib.error.HTTPError) -> bytes:
        """Nothing for an empty file, else the error in words."""
        if error.code == 416 and self._nbytes is None:
            match = _CONTENT_RANGE.fullmatch(error.headers.get("Content-Range", ""))
            if match is not None and match[3] == "0":
                self._nbytes = 0
                return b""
        if error.code in (404, 410):
            raise MissingFileError("no such file on the server", where=self._url, got=str(error.code)) from error
        fix = "it needs a login; hf:// addresses use the hub's token" if error.code in (401, 403) else "try again later"
        raise FileAccessError(
            "the server refused", where=self._url, got=f"{error.code} {error.reason}", fix=fix
        ) from error


class FsspecFile:
    """A file on any file system that fsspec knows."""

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            import fsspec

            self._system, self._path = fsspec.core.url_to_fs(url)
            self._size = int(self._system.info(self._path)["size"])
        except FileNotFoundError as error:
            raise MissingFileError("no such file there", where=url) from error
        except Exception as error:  # each file system raises its own kinds
            raise _cannot_read(url, error) from error

    @property
    def name(self) -> str:
        """The address as it was given."""
        return self._url

    @property
    def nbytes(self) -> int:
        """Size in bytes when it was opened."""
        return self._size

    def read_into(self, begin: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``begin`` on, by one request."""
        try:
            data: Any = self._system.cat_file(self._path, start=begin, end=begin + len(buffer))
        except Exception as error:  # each file system raises its own kinds
            raise _cannot_read(self._url, error) from error
        if len(data) != len(buffer):
            raise FileAccessError(
                "the file ends inside the range asked for",
                where=self._url,
                expected=f"{len(buffer)} bytes from {begin} on",
                got=f"{len(data)} bytes",
                fix="it changed since it was opened; open it again",
            )
        buffer[:] = data

    def close(self) -> None:
        """Nothing stays open between requests."""


class RemoteFolder:
    """A folder at an address: what stands behind the last slash is a file in it."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    @property
    def name(self) -> str:
        """The address as it was given."""
        return self._url

    def child(self, name: str) -> str:
        """The address of a file in it."""
        return f"{self._url}/{name}"

    def has(self, name: str) -> bool:
        """Whether there is such a file: one request."""
        try:
            open_remote(self.child(name)).close()
        except MissingFileError:
            return False
        return True

    def read_small(self, name: str, *, cap_nbytes: int) -> bytes:
        """The whole content of a small file; ``FormatError`` where it is over the cap."""
        source = open_remote(self.child(name))
        if source.nbytes > cap_nbytes:
            raise too_large(source.name, source.nbytes, cap_nbytes)
        buffer = bytearray(source.nbytes)
        source.read_into(0, memoryview(buffer))
        return bytes(buffer)

    def hint(self) -> str:
        """What to do where there is no checkpoint in it."""
        return "check the address; on the hub it ends in /resolve/main"


def _cannot_read(url: str, error: Exception) -> FileAccessError:
    return FileAccessError(f"cannot read: {type(error).__name__}: {error}", where=url, fix="check the address")
