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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labkit.errors import MissingFileError, TraceError, UnknownNameError
from labkit.verification.trace import FORMAT, VERSION, parse_metadata
from labkit.verification.trace_names import INPUT_NAMES
from labkit.verification.trace_record import Recorded

RAW_DTYPES = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "uint8")
}
_FIELDS = ("file", "dtype", "shape", "offset", "permute")


def read_dumps(path: str | Path) -> Recorded:
    """The tensors and metadata that the map at ``path`` names.

    Raises ``TraceError`` for what the map or a dump has wrong, ``MissingFileError`` for a file that is not there.
    """
    place = Path(path)
    fields = _json_object(place)
    for key in ("metadata", "tensors"):
        if not isinstance(fields.get(key), dict):
            raise TraceError(f"the map has no object {key!r}", where=place, got=type(fields.get(key)).__name__)
    metadata = parse_metadata(_metadata(fields["metadata"], place), where=f"{place}, metadata")
    tensors = {name: _tensor(name, entry, place) for name, entry in fields["tensors"].items()}
    return Recorded(tensors, metadata, (f"gathered from {len(tensors)} dumps by {place.name}",))


def _json_object(place: Path) -> dict[str, Any]:
    if not place.is_file():
        raise MissingFileError("the file is not there", where=place)
    try:
        fields = json.loads(place.read_text(encoding="utf-8"))
    except ValueError as error:
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
    if not isinstance(entry, dict) or not isinstance(entry.get("file"), str):
        raise TraceError("the map gives no file", where=where, expected='{"file": …}', got=repr(entry))
    for key in entry:
        if key not in _FIELDS:
            raise TraceError(UnknownNameError.near("field", key, _FIELDS).what, where=where, fix=", ".join(_FIELDS))
    file = place.parent / entry["file"]
    if not file.is_file():
        raise MissingFileError("the dump is not there", where=f"{where}, {file}")
    value = _numpy(file, where) if file.suffix == ".npy" else _raw(file, entry, where)
    if "shape" in entry:
        value = _reshaped(value, entry["shape"], where)
    if "permute" in entry:
        if sorted(entry["permute"]) != list(range(value.dim())):
            raise TraceError(
                "permute does not name each axis once",
                where=where,
                expected=f"{value.dim()} axes",
                got=entry["permute"],
            )
        value = value.permute(entry["permute"]).contiguous()
    return value.long() if name.endswith(INPUT_NAMES) and not value.is_floating_point() else value


def _numpy(file: Path, where: str) -> Tensor:
    try:
        array = np.load(file, allow_pickle=False)
        return torch.from_numpy(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))))
    except (ValueError, TypeError, OSError) as error:
        raise TraceError("the .npy file cannot be read", where=f"{where}, {file.name}", got=str(error)) from error


def _raw(file: Path, entry: dict[str, Any], where: str) -> Tensor:
    dtype = entry.get("dtype")
    if dtype not in RAW_DTYPES:
        raise TraceError("a raw dump needs its dtype", where=where, expected=", ".join(RAW_DTYPES), got=repr(dtype))
    if "shape" not in entry:
        raise TraceError("a raw dump needs its shape", where=where, fix='add "shape": [batch, pos, …]')
    data = bytearray(file.read_bytes()[int(entry.get("offset", 0)) :])
    size = RAW_DTYPES[dtype].itemsize
    if not data or len(data) % size:
        raise TraceError(f"the bytes are no whole number of {dtype}", where=f"{where}, {file.name}", got=len(data))
    return torch.frombuffer(data, dtype=RAW_DTYPES[dtype])


def _reshaped(value: Tensor, shape: Any, where: str) -> Tensor:
    sizes = shape if isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape) else None
    if sizes is None or value.numel() != int(np.prod(sizes)):
        raise TraceError(
            "the dump does not fill the shape", where=where, expected=f"{value.numel()} elements", got=f"shape {shape}"
        )
    return value.reshape(sizes)
