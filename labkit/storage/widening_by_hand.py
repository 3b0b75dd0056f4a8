"""Any stored dtype -> float32 by hand, bit field by bit field: the clear twin of ``widen``.

In: a dtype code and its bytes. Out: float32 values, and how the bits of one number divide into sign, exponent and mantissa.
Nothing is converted by a library here: a float is ``sign * 2 ** exponent * significand``, computed from its fields in
float64, which holds every value of every dtype of 32 bits and less exactly.
Source: IEEE 754 for F64, F32 and F16; the OCP 8-bit floating point and microscaling (MX) specifications for the rest.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from labkit.errors import ArgumentTypeError
from labkit.storage.arrays import unpack_codes
from labkit.storage.dtypes import DTYPES

Array = np.ndarray[Any, Any]
Specials = Literal["ieee", "nan-only", "fnuz", "finite", "e8m0"]


@dataclass(frozen=True)
class FloatLayout:
    """How a float's bits divide; ``specials`` says which codes are not numbers.

    ``ieee``: the highest exponent holds infinity and NaN. ``nan-only``: all ones is NaN, nothing is infinite.
    ``fnuz``: the code of negative zero is the only NaN. ``finite``: every code is a number. ``e8m0``: no sign, no zero.
    """

    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Specials


LAYOUTS = {
    "F64": FloatLayout(11, 52, 1023, "ieee"),
    "F32": FloatLayout(8, 23, 127, "ieee"),
    "BF16": FloatLayout(8, 7, 127, "ieee"),
    "F16": FloatLayout(5, 10, 15, "ieee"),
    "F8_E5M2": FloatLayout(5, 2, 15, "ieee"),
    "F8_E4M3": FloatLayout(4, 3, 7, "nan-only"),
    "F8_E5M2FNUZ": FloatLayout(5, 2, 16, "fnuz"),
    "F8_E4M3FNUZ": FloatLayout(4, 3, 8, "fnuz"),
    "F8_E8M0": FloatLayout(8, 0, 127, "e8m0"),
    "F6_E2M3": FloatLayout(2, 3, 1, "finite"),
    "F6_E3M2": FloatLayout(3, 2, 3, "finite"),
    "F4": FloatLayout(2, 1, 1, "finite"),
}
"""Every float dtype's layout."""


@dataclass(frozen=True)
class BitFields:
    """One element, bit by bit: each field's name and its bits, highest first, and the value they make."""

    code: str
    fields: tuple[tuple[str, str], ...]
    value: str
    formula: str


def widen_by_hand(code: str, raw: bytes) -> Array:
    """Float32 values of the elements in ``raw``, flat.

    >>> widen_by_hand("BF16", bytes.fromhex("803f 20c0"))
    array([ 1. , -2.5], dtype=float32)
    >>> widen_by_hand("F16", bytes.fromhex("0100 007c"))  # the smallest subnormal, and infinity
    array([5.9604645e-08,           inf], dtype=float32)

    Raises ``ArgumentTypeError`` for C64, which float32 cannot hold.
    """
    if code == "C64":
        raise ArgumentTypeError("complex values cannot be widened to float32", got=code)
    codes = codes_of(code, raw)  # [numel] unsigned
    if code == "BF16":
        return (codes.astype(np.uint32) << 16).view(np.float32)  # [numel]: the upper half of a float32
    if code == "F32":
        return codes.view(np.float32)
    if code in LAYOUTS:
        with np.errstate(over="ignore"):  # an F64 beyond float32's range is infinite there
            return float_values(codes, LAYOUTS[code]).astype(np.float32)
    if code == "BOOL":
        codes = codes != 0
    signed = DTYPES[code].kind == "signed"
    numbers: Array = codes.view(codes.dtype.name.replace("u", "", 1)) if signed else codes
    return numbers.astype(np.float32)


def codes_of(code: str, raw: bytes) -> Array:
    """Each element's bits as an unsigned number: uint8 to uint64, [numel]."""
    bits = DTYPES[code].bits
    octets = np.frombuffer(raw, dtype=np.uint8)  # [nbytes]
    if bits % 8:
        return unpack_codes(octets, bits)
    unsigned: np.dtype[Any] = np.dtype(f"<u{bits // 8}")
    return octets.view(unsigned)


def float_values(codes: Array, layout: FloatLayout) -> Array:
    """The values of float codes [numel] as float64, from sign, exponent and mantissa."""
    wide = codes.astype(np.uint64)  # [numel]
    mantissa = wide & np.uint64(2**layout.mantissa_bits - 1)  # [numel]
    exponent = (wide >> np.uint64(layout.mantissa_bits)) & np.uint64(2**layout.exponent_bits - 1)  # [numel]
    negative = (wide >> np.uint64(layout.mantissa_bits + layout.exponent_bits)).astype(bool)  # [numel]
    if layout.specials == "e8m0":
        values = np.ldexp(1.0, exponent.astype(np.int64) - layout.bias)  # [numel]
        return np.where(exponent == 255, np.nan, values)
    normal = exponent > 0
    # 1.m, or 0.m below the normals
    significand = normal + mantissa.astype(np.float64) * 2.0**-layout.mantissa_bits  # [numel]
    power = np.where(normal, exponent, 1).astype(np.int64) - layout.bias  # [numel]
    with np.errstate(over="ignore"):  # the highest exponent of an F64 is no number; it is replaced below
        values = np.where(negative, -1.0, 1.0) * np.ldexp(significand, power)  # [numel]
    highest = 2**layout.exponent_bits - 1
    if layout.specials == "ieee":
        special = np.where(mantissa == 0, np.where(negative, -np.inf, np.inf), np.nan)  # [numel]
        return np.where(exponent == highest, special, values)
    if layout.specials == "nan-only":
        return np.where((exponent == highest) & (mantissa == 2**layout.mantissa_bits - 1), np.nan, values)
    if layout.specials == "fnuz":
        return np.where(negative & (exponent == 0) & (mantissa == 0), np.nan, values)
    return values


def bit_fields(code: str, number: int) -> BitFields:
    """One element's bits by field; ``number`` is its bits as an unsigned number.

    >>> bit_fields("F16", 0x3C00).fields
    (('sign', '0'), ('exponent', '01111'), ('mantissa', '0000000000'))
    >>> print(bit_fields("F16", 0x3C00).formula, "=", bit_fields("F16", 0x3C00).value)
    + 2^(15 - 15) * 1.0 = 1.0
    """
    bits = DTYPES[code].bits
    text = format(number, f"0{bits}b")
    layout = LAYOUTS.get(code)
    if layout is None:
        return _whole_fields(code, number, text)
    signs = bits - layout.exponent_bits - layout.mantissa_bits
    names = ("sign", "exponent", "mantissa")
    parts = (text[:signs], text[signs : signs + layout.exponent_bits], text[signs + layout.exponent_bits :])
    value = float(float_values(np.array([number], dtype=np.uint64), layout)[0])
    return BitFields(
        code,
        tuple((name, part) for name, part in zip(names, parts, strict=True) if part),
        str(value),
        _formula(layout, *parts, value),
    )


def _whole_fields(code: str, number: int, text: str) -> BitFields:
    kind = DTYPES[code].kind
    if kind == "complex":
        real, imaginary = (bit_fields("F32", half).value for half in (number & 0xFFFFFFFF, number >> 32))
        return BitFields(code, (("imaginary", text[:32]), ("real", text[32:])), f"{real} + {imaginary}i", "two F32")
    if kind == "bool":
        return BitFields(code, (("value", text),), str(number != 0), "true where any bit is set")
    if kind == "signed":
        value = number - (1 << len(text)) if text[0] == "1" else number
        return BitFields(code, (("sign", text[0]), ("value", text[1:])), str(value), "two's complement")
    return BitFields(code, (("value", text),), str(number), "unsigned")


def _formula(layout: FloatLayout, sign: str, exponent: str, mantissa: str, value: float) -> str:
    if not np.isfinite(value):
        return "a code kept for what is no finite number"
    stored = int(exponent, 2)
    power = f"2^({stored or 1} - {layout.bias})" if mantissa else f"2^({stored} - {layout.bias})"
    if not mantissa:
        return power
    significand = (stored > 0) + int(mantissa, 2) / 2 ** len(mantissa)
    return f"{'-' if sign == '1' else '+'} {power} * {significand}"
