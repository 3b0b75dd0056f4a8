"""Any stored dtype -> float32, fast, through torch; says how many elements could not be held exactly.

In: a tensor, or a header's dtype code with the bytes it stands for. Out: float32 values. The by-hand twin, which shows
what each bit means, is ``widening_by_hand``; the tests hold the two equal on every pattern.
Source: the OCP 8-bit floating point and microscaling (MX) specifications for the small floats.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from labkit.errors import ArgumentTypeError
from labkit.storage.dtypes import BITS, DTYPES

if TYPE_CHECKING:
    from torch import Tensor

F4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The eight magnitudes of an F4 (E2M1); the fourth bit is the sign."""
_ROUNDED = (torch.float64, torch.int32, torch.int64, torch.uint32, torch.uint64)


@dataclass(frozen=True)
class Widened:
    """Float32 values, and how many of them are not what was stored."""

    values: "Tensor"
    rounded: int

    def __str__(self) -> str:
        total = self.values.numel()
        return f"{self.rounded} of {total} elements rounded" if self.rounded else f"all {total} elements exact"


def to_float32(tensor: "Tensor") -> "Tensor":
    """The values as float32: exact where float32 can hold them, else rounded to nearest even.

    >>> to_float32(torch.tensor([1.0, 2.5], dtype=torch.bfloat16))
    tensor([1.0000, 2.5000])

    Raises ``ArgumentTypeError`` for complex values, which float32 cannot hold.
    """
    if tensor.dtype == torch.float32:
        return tensor
    if tensor.is_complex():
        raise ArgumentTypeError(
            "complex values cannot be widened to float32", got=str(tensor.dtype), fix="take .real and .imag"
        )
    if tensor.dtype == torch.float4_e2m1fn_x2:
        codes = unpack(tensor.contiguous().view(torch.uint8).reshape(-1), 4)  # [numel]
        shape = (*tensor.shape[:-1], 2 * tensor.shape[-1])
        return small_float_values("F4")[codes.long()].reshape(shape)
    return tensor.to(torch.float32)


def widen(tensor: "Tensor") -> Widened:
    """``to_float32`` with the number of elements that had to be rounded.

    >>> print(widen(torch.tensor([1, 16777217])))
    1 of 2 elements rounded
    """
    values = to_float32(tensor)
    return Widened(values, _count_rounded(tensor, values) if tensor.dtype in _ROUNDED else 0)


def widen_bytes(raw: "Tensor", code: str, shape: tuple[int, ...]) -> Widened:
    """Float32 values of ``raw``: the uint8 tensor of ``shape`` elements of dtype ``code``, packed ones included."""
    bits = BITS[code]
    if bits % 8:
        codes = unpack(raw, bits)  # [numel]
        return Widened(small_float_values(code)[codes.long()].reshape(shape), 0)
    stored = raw.view(torch_dtype(code)) if raw.numel() else torch.empty(0, dtype=torch_dtype(code))
    return widen(stored.reshape(shape))


def float64_values(raw: "Tensor", code: str) -> "Tensor":
    """The elements in ``raw`` (uint8) as float64, flat; a C64 gives its real and imaginary parts in turn.

    >>> float64_values(torch.tensor([0, 0, 128, 63], dtype=torch.uint8), "F32")
    tensor([1.], dtype=torch.float64)
    """
    if BITS[code] % 8:
        return small_float_values(code)[unpack(raw, BITS[code]).long()].double()  # [numel]
    if code == "BOOL":
        return (raw != 0).double()  # [numel]
    stored = raw.clone().view(
        torch_dtype("F32" if code == "C64" else code)
    )  # [numel]: a clone starts at its own offset 0
    return stored.to(torch.float32).double() if stored.itemsize == 1 else stored.double()


def torch_dtype(code: str) -> torch.dtype:
    """torch's type for a code that it has one for.

    >>> torch_dtype("F8_E4M3")
    torch.float8_e4m3fn
    """
    return _TORCH[code]


def unpack(raw: "Tensor", bits: int) -> "Tensor":
    """Codes of ``bits`` (4 or 6) bits from packed bytes, one uint8 each; the first element sits in the lowest bits.

    >>> unpack(torch.tensor([0x21], dtype=torch.uint8), 4)
    tensor([1, 2], dtype=torch.uint8)
    """
    if bits == 4:
        return torch.stack((raw & 15, raw >> 4), dim=-1).reshape(-1)  # [2 * bytes]
    a, b, c = raw.reshape(-1, 3).unbind(1)  # [bytes / 3] each: four codes in three bytes
    codes = (a & 63, (a >> 6) | ((b & 15) << 2), (b >> 4) | ((c & 3) << 4), c >> 2)
    return torch.stack(codes, dim=-1).reshape(-1)  # [4 * bytes / 3]


def small_float_values(code: str) -> "Tensor":
    """The value of every code of F4, F6_E2M3 or F6_E3M2: a table of 16 or 64 float32."""
    if code == "F4":
        magnitudes = torch.tensor(F4_VALUES)  # [8]
    else:
        exponent_bits, mantissa_bits = (2, 3) if code == "F6_E2M3" else (3, 2)
        bias = 2 ** (exponent_bits - 1) - 1
        codes = torch.arange(32)  # [32]
        exponent, mantissa = codes >> mantissa_bits, codes & (2**mantissa_bits - 1)
        implied = (exponent > 0).float()  # subnormals lack the leading one
        fraction = implied + mantissa / 2**mantissa_bits  # [32]
        magnitudes = torch.ldexp(fraction, exponent.clamp(min=1) - bias)  # [32]
    return torch.cat((magnitudes, -magnitudes))


def _count_rounded(stored: "Tensor", values: "Tensor") -> int:
    if stored.dtype == torch.float64:
        same = (values.double() == stored) | stored.isnan()
        return int((~same).sum())
    whole = stored.to(torch.int64)  # uint64 above 2^63 - 1 wraps, and the halves below keep that apart
    low, high = whole & 0xFFFFFFFF, whole >> 32
    if stored.dtype == torch.uint64:
        high = high & 0xFFFFFFFF
    # float64 holds the float32 value exactly; split it the same way, since float64 cannot hold a 64-bit integer
    wide = values.double()
    wide_high = torch.floor(wide / 2**32)
    wide_low = wide - wide_high * 2**32
    return int(((wide_high != high.double()) | (wide_low != low.double())).sum())


_TORCH: dict[str, torch.dtype] = {
    code: getattr(torch, dtype.torch) for code, dtype in DTYPES.items() if dtype.torch is not None
}
