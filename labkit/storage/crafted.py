"""How a crafted file is put together: a header's text framed by its length, an entry with one thing changed.

In: JSON text. Out: a file's bytes. Everything starts from one sound file: ``a`` F32 [1] in four bytes of data.
"""

import json
from dataclasses import dataclass
from typing import Any

DATA = bytes(range(64))
"""What the data sections of crafted files are cut from."""


@dataclass(frozen=True)
class Crafted:
    """One file: its name, the code it must be refused with (None: it must be accepted), what is odd, and its bytes."""

    name: str
    code: str | None
    oddity: str
    data: bytes


def frame(header: bytes | str, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file of a header and data; ``length`` lies about the header's length.

    >>> frame("{}")
    b'\\x02\\x00\\x00\\x00\\x00\\x00\\x00\\x00{}'
    """
    text = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(name: str = "a", dtype: Any = "F32", shape: str = "[1]", offsets: str = "[0,4]") -> str:
    """One entry as JSON text; ``name`` goes in as it is, the rest as JSON text."""
    return f'"{name}":{{"dtype":{json.dumps(dtype)},"shape":{shape},"data_offsets":{offsets}}}'


def file_of(*entries: str, data: bytes = DATA[:4]) -> bytes:
    """A file of these entries and this data; of the one sound entry, unless given."""
    return frame("{" + ",".join(entries or (entry(),)) + "}", data)
