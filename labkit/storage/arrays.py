"""A tensor's bytes as a NumPy array, in NumPy's own type or in that of the ml_dtypes package.

In: a uint8 array and the ``Entry`` it belongs to. Out: an array of the entry's shape. torch is not needed.
"""

import importlib
import importlib.util
from typing import Any

import numpy as np

from labkit.errors import ArgumentTypeError
from labkit.storage.dtypes import DTYPES
from labkit.storage.header import Entry

Array = np.ndarray[Any, Any]


def numpy_array(raw: Array, entry: Entry, where: str) -> Array:
    """``raw`` [nbytes] as an array of ``entry.shape``; raises ``ArgumentTypeError`` where NumPy has no such type."""
    dtype = DTYPES[entry.dtype]
    codes = unpack_codes(raw, dtype.bits) if dtype.packed else raw
    return codes.view(numpy_dtype(entry.dtype, where)).reshape(entry.shape)


def numpy_dtype(code: str, where: str) -> np.dtype[Any]:
    """NumPy's type for a dtype code, from ml_dtypes where NumPy itself has none."""
    dtype = DTYPES[code]
    if dtype.numpy is not None:
        native: np.dtype[Any] = np.dtype(dtype.numpy)
        return native
    if importlib.util.find_spec("ml_dtypes") is None:
        raise ArgumentTypeError(
            "NumPy has no such type", where=where, got=code, fix="pip install ml_dtypes, or take .float32(name)"
        )
    extra: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), dtype.ml_dtypes or ""))
    return extra


def unpack_codes(raw: Array, bits: int) -> Array:
    """Codes of 4 or 6 bits, one to a byte; the first element sits in the lowest bits.

    >>> unpack_codes(np.array([0x21], np.uint8), 4)
    array([1, 2], dtype=uint8)
    """
    ones_and_zeros = np.unpackbits(raw, bitorder="little").reshape(-1, bits)  # [numel, bits]
    return np.packbits(ones_and_zeros, axis=1, bitorder="little").reshape(-1)  # [numel]


def pack_codes(codes: Array, bits: int) -> Array:
    """The reverse of ``unpack_codes``; the codes must fill whole bytes.

    >>> pack_codes(np.array([1, 2], np.uint8), 4)
    array([33], dtype=uint8)
    """
    ones_and_zeros = np.unpackbits(codes.reshape(-1, 1), axis=1, bitorder="little")[:, :bits]  # [numel, bits]
    return np.packbits(ones_and_zeros.reshape(-1), bitorder="little")  # [numel * bits / 8]
