"""safetensors files and snapshots: read strictly, write safely, see every byte.

Names are looked up when first used, so that reading a header needs neither torch nor NumPy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.storage.dtypes import DTYPES as DTYPES
    from labkit.storage.dtypes import Dtype as Dtype
    from labkit.storage.file import SafetensorsFile as SafetensorsFile
    from labkit.storage.file import StorageWarning as StorageWarning
    from labkit.storage.file import load_safetensors as load_safetensors
    from labkit.storage.file import open_safetensors as open_safetensors
    from labkit.storage.header import Entry as Entry
    from labkit.storage.header import Header as Header
    from labkit.storage.header import read_header as read_header
    from labkit.storage.rules import RULES as RULES
    from labkit.storage.sharding import save_snapshot as save_snapshot
    from labkit.storage.snapshot import Snapshot as Snapshot
    from labkit.storage.snapshot import open_snapshot as open_snapshot
    from labkit.storage.widening import to_float32 as to_float32
    from labkit.storage.widening import widen as widen
    from labkit.storage.writer import RawTensor as RawTensor
    from labkit.storage.writer import save_safetensors as save_safetensors

_HOMES = {
    "DTYPES": "dtypes",
    "Dtype": "dtypes",
    "Entry": "header",
    "Header": "header",
    "RULES": "rules",
    "RawTensor": "writer",
    "SafetensorsFile": "file",
    "Snapshot": "snapshot",
    "StorageWarning": "file",
    "load_safetensors": "file",
    "open_safetensors": "file",
    "open_snapshot": "snapshot",
    "read_header": "header",
    "save_safetensors": "writer",
    "save_snapshot": "sharding",
    "to_float32": "widening",
    "widen": "widening",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'labkit.storage' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(importlib.import_module(f"labkit.storage.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
