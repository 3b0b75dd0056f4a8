"""One tensor, or some of its rows -> a file that other tools read: raw float32, NumPy's .npy, or CSV; streaming.

In: an open file, a name and a place to write. Out: the number of elements written. The file appears complete or not at all.
"""

import os
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO, Literal

import numpy as np

from labkit.atomic import replacing
from labkit.errors import ArgumentError
from labkit.storage.arrays import Array
from labkit.storage.dtypes import DTYPES
from labkit.storage.file import SafetensorsFile, row_range
from labkit.storage.widening import widen_bytes

Form = Literal["f32", "npy", "csv"]


def export_tensor(
    file: SafetensorsFile,
    name: str,
    path: str | os.PathLike[str],
    *,
    rows: tuple[int, int] | None = None,
    form: Form = "npy",
) -> int:
    """Write a tensor, or rows [start, stop) of it, and return how many elements that were.

    ``f32``: little-endian float32 in C order, nothing else. ``npy``: in the stored dtype where NumPy has it, else as
    float32. ``csv``: one row of the last axis a line, with digits enough to read each number back exactly.
    """
    entry = file.header.entry(name)
    shape = entry.shape if rows is None else (rows[1] - rows[0], *entry.shape[1:])
    first, count = (0, entry.numel) if rows is None else row_range(entry, *rows, file.header.name)
    if form not in ("f32", "npy", "csv"):
        raise ArgumentError("no such format", expected="f32, npy or csv", got=repr(form))
    numpy_name = DTYPES[entry.dtype].numpy
    with replacing(path) as out:
        if form == "npy":
            _write_npy_header(out, np.dtype(numpy_name or "float32"), shape)
        if form == "npy" and numpy_name is not None:
            for raw in file.chunks(name, first=first, count=count):
                out.write(raw.numpy().data)
        elif form == "csv":
            for line in _lines(_numbers(file, name, first, count), shape[-1] if shape else 1):
                out.write(line)
        else:
            for values in _values(file, name, first, count):
                out.write(values.astype("<f4", copy=False).data)
    return count


def _values(file: SafetensorsFile, name: str, first: int, count: int) -> Iterator[Array]:
    """The elements as float32 arrays, a chunk at a time."""
    code = file.header.entry(name).dtype
    for raw in file.chunks(name, first=first, count=count):
        numel = raw.numel() * 8 // DTYPES[code].bits
        yield widen_bytes(raw.clone(), code, (numel,)).values.numpy()  # [numel of the chunk]


def _numbers(file: SafetensorsFile, name: str, first: int, count: int) -> Iterator[str]:
    """The elements as text: whole numbers exactly, floats with the digits that bring them back."""
    dtype = DTYPES[file.header.entry(name).dtype]
    if dtype.numpy is None or dtype.numpy in ("float16", "float32"):
        for values in _values(file, name, first, count):
            yield from (f"{value:.9g}" for value in values.tolist())
    else:
        for raw in file.chunks(name, first=first, count=count):
            yield from map(str, raw.numpy().view(dtype.numpy).tolist())


def _write_npy_header(out: BinaryIO, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> None:
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, fields)


def _lines(numbers: Iterator[str], width: int) -> Iterator[bytes]:
    """Lines of ``width`` numbers each."""
    while line := list(islice(numbers, width)):
        yield (",".join(line) + "\n").encode()
