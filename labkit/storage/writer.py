"""Tensors -> a safetensors file: by value whatever their memory order, the same bytes for the same input, atomically.

In: a mapping from name to torch tensor, NumPy array or ``RawTensor``. Out: the file, complete or not there at all.
Tensors are written widest dtype first, then by name, so that each is aligned to its own size; at most one of them is
copied in memory at a time.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import msgspec
import numpy as np
import torch

from labkit.atomic import replacing
from labkit.errors import ArgumentError, ArgumentTypeError, FileAccessError, UnknownNameError
from labkit.outside import path_of, shown
from labkit.storage.arrays import Array, pack_codes
from labkit.storage.dtypes import DTYPES
from labkit.storage.raw import METADATA
from labkit.storage.rules import HEADER_CAP_NBYTES
from labkit.storage.shared import find_shared

if TYPE_CHECKING:
    from torch import Tensor

ALIGNMENT = 8
"""The header is padded with spaces so that the data section starts at a multiple of this many bytes."""

Shared = Literal["refuse", "copy"]
_BY_TORCH = {getattr(torch, dtype.torch): code for code, dtype in DTYPES.items() if dtype.torch is not None}
_BY_NUMPY = {
    name: code for code, dtype in DTYPES.items() for name in (dtype.numpy, dtype.ml_dtypes) if name is not None
}


@dataclass(frozen=True)
class RawTensor:
    """A tensor as its bytes, for dtypes that neither torch nor NumPy has, and for copies that touch no value.

    >>> RawTensor("F6_E2M3", (4,), bytes(3)).nbytes
    3
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def nbytes(self) -> int:
        """Bytes it takes in the file."""
        return len(self.data)


@dataclass(frozen=True)
class Planned:
    """One tensor and the place it will get in the data section."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    value: Any


def save_safetensors(
    tensors: "Mapping[str, Tensor | Array | RawTensor]",
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, str] | None = None,
    shared: Shared = "refuse",
) -> None:
    """Write ``tensors`` to ``path``, atomically; read back they are equal in dtype, shape and every bit.

    ``shared="copy"`` writes tensors that share memory once each; by default they are refused, because the file would
    not say that they were one.

    >>> import tempfile; from pathlib import Path; path = Path(tempfile.mkdtemp()) / "two.safetensors"
    >>> save_safetensors({"a": torch.arange(3), "b": torch.ones(2, 2)}, path)
    >>> path.stat().st_size
    160

    Raises ``ArgumentError``, ``ArgumentTypeError`` for what cannot be written, ``FileAccessError`` where writing fails.
    """
    target = path_of(path)
    plan, header = lay_out(tensors, metadata=metadata, shared=shared, where=str(path))
    with replacing(target) as file:
        write_planned(file, plan, header)


def lay_out(
    tensors: Mapping[str, Any], *, metadata: Mapping[str, str] | None, shared: Shared, where: str
) -> tuple[list[Planned], bytes]:
    """Every tensor's place, and the bytes in front of the data section; nothing is copied yet."""
    if sys.byteorder != "little":
        raise FileAccessError("this machine is big-endian, the format little-endian", where=where)
    for what, given in (("tensors", tensors), ("metadata", metadata or {})):
        if not isinstance(given, Mapping):
            raise ArgumentTypeError(f"{what} must be a mapping by name", where=where, got=type(given).__name__)
    if shared not in ("refuse", "copy"):
        raise UnknownNameError.near("way of treating shared memory", shared, ("refuse", "copy"))
    _check_metadata(metadata or {}, where)
    described = [(name, *_describe(name, value, where)) for name, value in tensors.items()]
    if shared != "copy":
        for first, second in find_shared(tensors):
            raise ArgumentError(
                f"tensors {shown(first)} and {shown(second)} share memory",
                where=where,
                fix="drop one, or pass shared='copy' to write both in full",
            )
    described.sort(key=lambda item: (-DTYPES[item[1]].bits, item[0]))
    plan, position = [], 0
    for name, dtype, shape, nbytes in described:
        plan.append(Planned(name, dtype, shape, position, position + nbytes, tensors[name]))
        position += nbytes
    return plan, encode_header(plan, metadata, where=where)


def encode_header(plan: list[Planned], metadata: Mapping[str, str] | None, *, where: str) -> bytes:
    """The 8-byte length and the header, padded with spaces; metadata is sorted, so the bytes are always the same."""
    fields: dict[str, Any] = {METADATA: dict(sorted(metadata.items()))} if metadata else {}
    for item in plan:
        fields[item.name] = {"dtype": item.dtype, "shape": item.shape, "data_offsets": (item.begin, item.end)}
    text = msgspec.json.encode(fields)
    text += b" " * (-len(text) % ALIGNMENT)
    if len(text) > HEADER_CAP_NBYTES:
        raise ArgumentError(
            "the header would be over the cap",
            where=where,
            expected=f"at most {HEADER_CAP_NBYTES} bytes",
            got=f"{len(text)} bytes for {len(plan)} tensors",
            fix="write several files",
        )
    return len(text).to_bytes(8, "little") + text


def write_planned(file: BinaryIO, plan: list[Planned], header: bytes) -> None:
    """The header, then every tensor's bytes."""
    file.write(header)
    for item in plan:
        for chunk in _chunks(item):
            file.write(chunk)
            del chunk  # or it would keep its tensor's copy alive while the next one is made


def _check_metadata(metadata: Mapping[str, str], where: str) -> None:
    for key, value in metadata.items():
        place = f"{where}, {METADATA} key {shown(key)}"
        for part in (key, value):
            if type(part) is not str:
                raise ArgumentTypeError("metadata maps strings to strings", where=place, got=type(part).__name__)
            _require_text(part, place)


def _require_text(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ArgumentError("the text holds half a surrogate pair, which UTF-8 cannot hold", where=where) from None


def _describe(name: str, value: Any, where: str) -> tuple[str, tuple[int, ...], int]:
    """Dtype code, shape in elements, and size in bytes, of what is to be written under ``name``."""
    if type(name) is not str:
        raise ArgumentTypeError("a tensor's name must be a string", where=where, got=repr(name))
    place = f"{where}, tensor {shown(name)}"
    _require_text(name, place)
    if name == METADATA:
        raise ArgumentError("this name is the format's own", where=place, fix="use another, or metadata=")
    if isinstance(value, RawTensor):
        return value.dtype, value.shape, _raw_nbytes(value, place)
    if isinstance(value, torch.Tensor):
        return _describe_torch(value, place)
    if isinstance(value, np.ndarray):
        return _describe_numpy(value, place)
    raise ArgumentTypeError(
        "not a tensor", where=place, expected="a torch tensor, a NumPy array or a RawTensor", got=type(value).__name__
    )


def _describe_torch(tensor: "Tensor", where: str) -> tuple[str, tuple[int, ...], int]:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.device.type == "meta":
        kind = (
            "nested"
            if tensor.is_nested
            else "quantized"
            if tensor.is_quantized
            else f"{tensor.layout} on {tensor.device}"
        )
        raise ArgumentTypeError("only dense tensors with values can be written", where=where, got=kind)
    code = _BY_TORCH.get(tensor.dtype)
    if code is None:
        raise ArgumentTypeError("the format has no such dtype", where=where, got=str(tensor.dtype))
    shape = tuple(tensor.shape)
    if code == "F4":
        if not shape:
            raise ArgumentTypeError("an F4 scalar holds two elements in torch", where=where, fix="give it an axis")
        shape = (*shape[:-1], 2 * shape[-1])
    return code, shape, tensor.numel() * tensor.element_size()


def _describe_numpy(array: Array, where: str) -> tuple[str, tuple[int, ...], int]:
    if isinstance(array, np.ma.MaskedArray):
        fix = "write .filled(value), or the mask as a tensor of its own"
        raise ArgumentTypeError("the format has no masks, so a masked array would lose its own", where=where, fix=fix)
    code = _BY_NUMPY.get(array.dtype.name)
    if code is None:
        raise ArgumentTypeError("the format has no such dtype", where=where, got=str(array.dtype))
    bits = array.size * DTYPES[code].bits
    if bits % 8:
        raise ArgumentError(
            f"{array.size} elements of {DTYPES[code].bits} bits do not fill whole bytes",
            where=where,
            got=str(array.shape),
        )
    return code, array.shape, bits // 8


def _raw_nbytes(raw: RawTensor, where: str) -> int:
    if raw.dtype not in DTYPES:
        raise ArgumentError("the format has no such dtype", where=where, got=shown(raw.dtype))
    bits = int(np.prod(raw.shape, dtype=object)) * DTYPES[raw.dtype].bits
    if bits != 8 * raw.nbytes:
        raise ArgumentError(
            "the bytes are not dtype times shape",
            where=where,
            expected=f"{bits / 8:g} bytes",
            got=f"{raw.nbytes} bytes",
        )
    return raw.nbytes


def _chunks(item: Planned) -> Iterator[memoryview | bytes]:
    """The tensor's bytes in C order; a copy only where the memory is in another order or on another device."""
    if item.begin == item.end:
        return
    value = item.value
    if isinstance(value, RawTensor):
        yield value.data
    elif isinstance(value, torch.Tensor):
        dense = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        flat = dense.as_strided((dense.numel(),), (1,))  # a single element may be "contiguous" with any stride
        yield flat.view(torch.uint8).numpy().data
    else:
        array = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<")).reshape(-1)
        bits = DTYPES[item.dtype].bits
        codes: Array = array.view(np.uint8)
        yield (codes if bits % 8 == 0 else pack_codes(codes, bits)).data
