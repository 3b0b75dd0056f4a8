"""safetensors files and snapshots: read strictly, write safely, see every byte.

Names are looked up when first used, so that reading a header needs neither torch nor NumPy.
"""

from typing import TYPE_CHECKING

from labkit.lazy import lazy_names

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
    "DTYPES": "labkit.storage.dtypes",
    "Dtype": "labkit.storage.dtypes",
    "Entry": "labkit.storage.header",
    "Header": "labkit.storage.header",
    "RULES": "labkit.storage.rules",
    "RawTensor": "labkit.storage.writer",
    "SafetensorsFile": "labkit.storage.file",
    "Snapshot": "labkit.storage.snapshot",
    "StorageWarning": "labkit.storage.file",
    "load_safetensors": "labkit.storage.file",
    "open_safetensors": "labkit.storage.file",
    "open_snapshot": "labkit.storage.snapshot",
    "read_header": "labkit.storage.header",
    "save_safetensors": "labkit.storage.writer",
    "save_snapshot": "labkit.storage.sharding",
    "to_float32": "labkit.storage.widening",
    "widen": "labkit.storage.widening",
}

__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
