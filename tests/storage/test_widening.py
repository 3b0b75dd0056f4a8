"""The fast road and the by-hand twin agree on every pattern, and say how many elements float32 cannot hold."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import ArgumentTypeError
from labkit.storage import DTYPES, to_float32, widen
from labkit.storage.arrays import numpy_dtype, pack_codes, unpack_codes
from labkit.storage.widening import torch_dtype, unpack, widen_bytes
from labkit.storage.widening_by_hand import LAYOUTS, bit_fields, codes_of, widen_by_hand

SMALL = [code for code, dtype in DTYPES.items() if dtype.bits <= 16]
WIDE = ["F64", "F32", "I64", "U64", "I32", "U32"]


def every_pattern(code: str) -> bytes:
    """Each code of the dtype once, packed as in a file."""
    bits = DTYPES[code].bits
    if code == "BOOL":
        return bytes([0, 1])
    if bits == 16:
        return np.arange(65536, dtype=np.uint16).tobytes()
    codes = np.arange(2**bits, dtype=np.uint8)
    return pack_codes(codes, bits).tobytes() if bits % 8 else codes.tobytes()


def fast(code: str, raw: bytes) -> np.ndarray:
    octets = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    numel = len(raw) * 8 // DTYPES[code].bits
    return widen_bytes(octets, code, (numel,)).values.numpy()


@pytest.mark.parametrize("code", SMALL)
def test_every_pattern(code: str) -> None:
    raw = every_pattern(code)
    by_hand = widen_by_hand(code, raw)
    assert by_hand.dtype == np.float32
    assert len(by_hand) == 2 ** min(DTYPES[code].bits, 16) or code == "BOOL"
    np.testing.assert_array_equal(by_hand, fast(code, raw))
    zero = by_hand == 0
    np.testing.assert_array_equal(np.signbit(by_hand[zero]), np.signbit(fast(code, raw)[zero]))


@pytest.mark.parametrize("code", [code for code in SMALL if DTYPES[code].ml_dtypes])
def test_every_pattern_against_ml_dtypes(code: str) -> None:
    raw = every_pattern(code)
    theirs = codes_of(code, raw).view(numpy_dtype(code, "")).astype(np.float32)
    assert hasattr(ml_dtypes, DTYPES[code].ml_dtypes or "")
    np.testing.assert_array_equal(widen_by_hand(code, raw), theirs)


@pytest.mark.parametrize("code", WIDE)
@given(data=st.data())
def test_wide_dtypes_by_sample(code: str, data: st.DataObject) -> None:
    nbytes = DTYPES[code].bits // 8
    raw = data.draw(st.binary(min_size=nbytes, max_size=nbytes))
    np.testing.assert_array_equal(widen_by_hand(code, raw), fast(code, raw))


@pytest.mark.parametrize(
    ("values", "rounded"),
    [
        (torch.tensor([1.5, 0.1, float("nan"), float("inf"), 1e300], dtype=torch.float64), 2),
        (torch.tensor([2**24, 2**24 + 1, -(2**24) - 1, -(2**24) - 2], dtype=torch.int32), 2),
        (torch.tensor([2**63 - 1, -(2**63), 2**62, 0], dtype=torch.int64), 1),
        (torch.tensor([2**64 - 1, 2**63, 2**63 + 1, 5], dtype=torch.uint64), 2),
        (torch.tensor([2**32 - 1, 2**31], dtype=torch.uint32), 1),
        (torch.tensor([1, 2, 65535], dtype=torch.uint16), 0),
    ],
)
def test_rounded_elements_are_counted(values: torch.Tensor, rounded: int) -> None:
    result = widen(values)
    assert result.rounded == rounded
    assert result.values.dtype == torch.float32
    assert str(result) == (
        f"{rounded} of {len(values)} elements rounded" if rounded else f"all {len(values)} elements exact"
    )


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_rounded_counts_agree_with_whole_numbers(numbers: list[int]) -> None:
    result = widen(torch.tensor(numbers, dtype=torch.int64))
    assert result.rounded == sum(
        int(value) != number for value, number in zip(result.values.tolist(), numbers, strict=True)
    )


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_rounding_is_to_nearest_even(numbers: list[int]) -> None:
    values = to_float32(torch.tensor(numbers, dtype=torch.uint64)).tolist()
    for value, number in zip(values, numbers, strict=True):
        spacing = max(1, 1 << max(0, number.bit_length() - 24))
        assert abs(int(value) - number) * 2 <= spacing
        if abs(int(value) - number) * 2 == spacing and spacing > 1:
            assert int(value) // spacing % 2 == 0 or int(value) == 1 << number.bit_length()


def test_f4_of_torch_unpacks_in_pairs() -> None:
    packed = torch.tensor([[0x21, 0xF7]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert to_float32(packed).tolist() == [[0.5, 1.0, 6.0, -6.0]]


def test_complex_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="complex values cannot be widened"):
        to_float32(torch.zeros(1, dtype=torch.complex64))
    with pytest.raises(ArgumentTypeError, match="complex values cannot be widened"):
        widen_by_hand("C64", bytes(8))


@pytest.mark.parametrize("bits", [4, 6])
@given(data=st.data())
def test_packing_is_undone_by_unpacking(bits: int, data: st.DataObject) -> None:
    codes = np.array(data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=4, max_size=4)) * 2, dtype=np.uint8)
    packed = pack_codes(codes, bits)
    assert len(packed) == len(codes) * bits // 8
    np.testing.assert_array_equal(unpack_codes(packed, bits), codes)
    np.testing.assert_array_equal(unpack(torch.from_numpy(packed.copy()), bits).numpy(), codes)


@pytest.mark.parametrize("code", sorted(DTYPES))
def test_bit_fields_cover_every_bit(code: str) -> None:
    bits = DTYPES[code].bits
    number = (1 << bits) - 2
    fields = bit_fields(code, number)
    assert "".join(part for _, part in fields.fields) == format(number, f"0{bits}b")
    if code in LAYOUTS and bits <= 32:
        raw = (
            number.to_bytes(max(bits // 8, 1), "little")
            if bits % 8 == 0
            else pack_codes(np.array([number] * 4, np.uint8), bits).tobytes()
        )
        assert str(np.float64(widen_by_hand(code, raw)[0])) in (fields.value, "nan")


def test_torch_has_every_dtype_that_the_table_says() -> None:
    for code, dtype in DTYPES.items():
        if dtype.torch is not None:
            assert torch_dtype(code).itemsize * 8 == dtype.bits * (2 if dtype.packed else 1)
