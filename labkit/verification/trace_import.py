"""Dumps that an engine already writes, .npy or raw bytes, and a map of names and layouts -> the tensors of a trace.

The map is a JSON file; paths in it are relative to it:

    {"metadata": {"engine": "mine", "config": "config.json", "compute_dtype": "float32", ...},
     "tensors": {"input_ids": {"file": "ids.bin", "dtype": "int32", "shape": [1, 5]},
                 "h.0.ln_1": {"file": "ln1_0.npy"},
                 "h.0.attn.q": {"file": "q0.bin", "dtype": "float32", "shape": [1, 5, 6, 32], "permute": [0, 2, 1, 3]}}}

``offset`` (bytes) skips a file's own header, ``permute`` turns the axes after the shape is taken. Of ``metadata`` only
``engine`` and ``config`` must be given; the dtypes are float32 and the device cpu where the map does not say.
"""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from labkit.errors import TraceError, UnknownNameError
from labkit.outside import NotJson, parse_json, read_regular, require_regular, shown
from labkit.verification.trace import FORMAT, VERSION, parse_metadata
from labkit.verification.trace_names import INPUT_NAMES
from labkit.verification.trace_record import Recorded
from labkit.words import counted

RAW_DTYPES = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "uint8")
}


class _Dump(msgspec.Struct, frozen=True):
    """What a map says of one tensor."""

    file: Annotated[str, msgspec.Meta(min_length=1)]
    dtype: str | None = None
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] | None = None
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0
    permute: tuple[int, ...] | None = None


def read_dumps(path: str | Path) -> Recorded:
    """The tensors and metadata that the map at ``path`` names.

    Raises ``TraceError`` for what the map or a dump has wrong, ``MissingFileError`` for a file that is not there.
    """
    place = Path(path)
    fields = _json_object(place)
    for key in ("metadata", "tensors"):
        if not isinstance(fields.get(key), dict) or not fields[key]:
            got = "an empty one" if fields.get(key) == {} else type(fields.get(key)).__name__
            raise TraceError(f"the map has no object {key!r}", where=place, got=got)
    metadata = parse_metadata(_metadata(fields["metadata"], place), where=f"{place}, metadata")
    tensors = {name: _tensor(name, entry, place) for name, entry in fields["tensors"].items()}
    return Recorded(tensors, metadata, (f"gathered from {counted(len(tensors), 'dump')} by {place.name}",))


def _json_object(place: Path) -> dict[str, Any]:
    try:
        fields = parse_json(read_regular(place))
    except NotJson as error:
        raise TraceError("not JSON", where=place, got=str(error)) from error
    if not isinstance(fields, dict):
        raise TraceError("not a JSON object", where=place, got=type(fields).__name__)
    return fields


def _metadata(stated: dict[str, Any], place: Path) -> dict[str, str]:
    fields = {"format": FORMAT, "version": VERSION, "model_type": "gpt2", "device": "cpu"}
    fields |= dict.fromkeys(("compute_dtype", "accumulate_dtype", "weight_dtype"), "float32")
    config = stated.get("config")
    if isinstance(config, str):
        config = _json_object(place.parent / config)
    written = {key: str(value) for key, value in stated.items() if key != "config"}
    return fields | written | ({} if config is None else {"config": json.dumps(config)})


def _tensor(name: str, entry: Any, place: Path) -> Tensor:
    where = f"{place}, tensor {name!r}"
    dump = _dump(entry, where)
    file = place.parent / dump.file
    require_regular(file, what=f"dump for tensor {name!r}")
    value = _numpy(file, where) if file.suffix == ".npy" else _raw(file, dump, where)
    if dump.shape is not None:
        value = _reshaped(value, dump.shape, where)
    if dump.permute is not None:
        if sorted(dump.permute) != list(range(value.dim())):
            raise TraceError(
                "permute does not name each axis once",
                where=where,
                expected=f"{value.dim()} axes",
                got=list(dump.permute),
            )
        value = value.permute(dump.permute).contiguous()
    return value.long() if name.endswith(INPUT_NAMES) and not value.is_floating_point() else value


def _dump(entry: Any, where: str) -> _Dump:
    if not isinstance(entry, dict) or "file" not in entry:
        raise TraceError("the map gives no file", where=where, expected='{"file": …}', got=shown(entry))
    for key in entry:
        if key not in _Dump.__struct_fields__:
            unknown = UnknownNameError.near("field", key, _Dump.__struct_fields__)
            raise TraceError(unknown.what, where=where, fix=", ".join(_Dump.__struct_fields__))
    try:
        return msgspec.convert(entry, _Dump)
    except msgspec.ValidationError as error:
        raise TraceError(f"the map cannot be followed: {error}", where=where) from error


def _numpy(file: Path, where: str) -> Tensor:
    try:
        with file.open("rb") as handle:
            array = np.lib.format.read_array(handle, allow_pickle=False)
        return torch.from_numpy(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))))
    except (ValueError, TypeError, OSError, EOFError, MemoryError, OverflowError) as error:
        raise TraceError("the .npy file cannot be read", where=f"{where}, {file.name}", got=str(error)) from error


def _raw(file: Path, dump: _Dump, where: str) -> Tensor:
    dtype = dump.dtype
    if dtype not in RAW_DTYPES:
        raise TraceError("a raw dump needs its dtype", where=where, expected=", ".join(RAW_DTYPES), got=shown(dtype))
    if dump.shape is None:
        raise TraceError("a raw dump needs its shape", where=where, fix='add "shape": [batch, pos, …]')
    data = bytearray(read_regular(file, cap_nbytes=None)[dump.offset :])
    size = RAW_DTYPES[dtype].itemsize
    if not data or len(data) % size:
        raise TraceError(f"the bytes are no whole number of {dtype}", where=f"{where}, {file.name}", got=len(data))
    return torch.frombuffer(data, dtype=RAW_DTYPES[dtype])


def _reshaped(value: Tensor, shape: tuple[int, ...], where: str) -> Tensor:
    if value.numel() != math.prod(shape):
        got = f"shape {list(shape)}"
        raise TraceError("the dump does not fill the shape", where=where, expected=f"{value.numel()} elements", got=got)
    return value.reshape(shape)
