"""The 22 dtype codes of the format: how many bits an element takes, and what torch and NumPy call it.

In: a code from a header, such as ``"BF16"``. Out: its ``Dtype``. Neither torch nor NumPy is imported here.
Source: the ``Dtype`` enum of safetensors 0.8.0 and the OCP specifications of the 8, 6 and 4 bit floats.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["float", "signed", "unsigned", "complex", "bool"]


@dataclass(frozen=True, kw_only=True)
class Dtype:
    """One dtype code; ``torch`` and ``numpy`` are attribute names, or None where that library has no such type.

    >>> DTYPES["BF16"].bits, DTYPES["BF16"].torch, DTYPES["F6_E3M2"].torch
    (16, 'bfloat16', None)
    """

    code: str
    bits: int
    kind: Kind
    torch: str | None
    numpy: str | None
    ml_dtypes: str | None = None
    meaning: str

    @property
    def packed(self) -> bool:
        """Whether elements share bytes (4 and 6 bit floats)."""
        return self.bits % 8 != 0


def _dtype(code: str, bits: int, kind: Kind, torch: str | None, numpy: str | None, meaning: str) -> Dtype:
    native = numpy is not None and not numpy.startswith("ml:")
    extra = numpy[3:] if numpy is not None and not native else None
    return Dtype(
        code=code,
        bits=bits,
        kind=kind,
        torch=torch,
        numpy=numpy if native else None,
        ml_dtypes=extra,
        meaning=meaning,
    )


_ALL = (
    _dtype("F64", 64, "float", "float64", "float64", "IEEE double"),
    _dtype("I64", 64, "signed", "int64", "int64", "two's complement"),
    _dtype("U64", 64, "unsigned", "uint64", "uint64", "unsigned"),
    _dtype("C64", 64, "complex", "complex64", "complex64", "two F32: real, imaginary"),
    _dtype("F32", 32, "float", "float32", "float32", "IEEE single"),
    _dtype("I32", 32, "signed", "int32", "int32", "two's complement"),
    _dtype("U32", 32, "unsigned", "uint32", "uint32", "unsigned"),
    _dtype("BF16", 16, "float", "bfloat16", "ml:bfloat16", "the upper half of an F32"),
    _dtype("F16", 16, "float", "float16", "float16", "IEEE half"),
    _dtype("I16", 16, "signed", "int16", "int16", "two's complement"),
    _dtype("U16", 16, "unsigned", "uint16", "uint16", "unsigned"),
    _dtype("F8_E5M2", 8, "float", "float8_e5m2", "ml:float8_e5m2", "5 exponent bits, 2 mantissa bits, infinities"),
    _dtype("F8_E4M3", 8, "float", "float8_e4m3fn", "ml:float8_e4m3fn", "4 exponent bits, 3 mantissa bits, no infinity"),
    _dtype("F8_E8M0", 8, "float", "float8_e8m0fnu", "ml:float8_e8m0fnu", "a power of two: 8 exponent bits only"),
    _dtype("F8_E5M2FNUZ", 8, "float", "float8_e5m2fnuz", "ml:float8_e5m2fnuz", "E5M2, no infinity, no negative zero"),
    _dtype("F8_E4M3FNUZ", 8, "float", "float8_e4m3fnuz", "ml:float8_e4m3fnuz", "E4M3, no infinity, no negative zero"),
    _dtype("I8", 8, "signed", "int8", "int8", "two's complement"),
    _dtype("U8", 8, "unsigned", "uint8", "uint8", "unsigned"),
    _dtype("BOOL", 8, "bool", "bool", "bool", "one byte, 0 or 1"),
    _dtype("F6_E2M3", 6, "float", None, "ml:float6_e2m3fn", "2 exponent bits, 3 mantissa bits, finite only"),
    _dtype("F6_E3M2", 6, "float", None, "ml:float6_e3m2fn", "3 exponent bits, 2 mantissa bits, finite only"),
    _dtype("F4", 4, "float", "float4_e2m1fn_x2", "ml:float4_e2m1fn", "2 exponent bits, 1 mantissa bit, finite only"),
)

DTYPES: Mapping[str, Dtype] = {dtype.code: dtype for dtype in _ALL}
"""Every dtype code, widest first."""

BITS: Mapping[str, int] = {dtype.code: dtype.bits for dtype in _ALL}
"""Bits per element of every dtype code."""
