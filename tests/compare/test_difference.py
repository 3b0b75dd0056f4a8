"""Differences: float64 throughout, in a fixed order, with the row's maximum as the unit near zero."""

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from labkit.compare import measure
from labkit.compare.difference import spacing, unravel
from labkit.errors import ArgumentError


def test_equal_tensors_have_no_difference() -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    d = measure(x, x.clone())
    assert (d.max_abs, d.max_rel, d.ulp, d.equal, d.non_finite, d.numel) == (0, 0, 0, True, 0, 12)


def test_the_worst_element_is_named_with_both_values() -> None:
    expected = torch.ones(2, 3)
    actual = expected.clone()
    actual[1, 2] = 1.5
    d = measure(actual, expected)
    assert (d.worst, d.actual_at_worst, d.expected_at_worst, d.max_abs, d.max_rel) == ((1, 2), 1.5, 1.0, 0.5, 0.5)


def test_one_step_of_each_dtype_is_one_ulp() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        one = torch.ones(1, dtype=dtype)
        d = measure(torch.nextafter(one, 2 * one), one)
        assert d.ulp == 1.0, dtype


def test_near_zero_the_rows_largest_is_the_unit() -> None:
    expected = torch.tensor([[8.0, 1e-9], [1.0, 0.5]])
    actual = expected + torch.tensor([[0.0, 1e-6], [0.0, 0.0]])
    d = measure(actual.double(), expected.double(), ulp_dtype=torch.float32)
    assert d.max_rel == pytest.approx(1e-6 / 8)
    assert d.ulp == pytest.approx(1e-6 / (8 * 2**-23))


def test_the_difference_is_not_taken_in_the_dtype_under_test() -> None:
    a, e = torch.tensor([256.0], dtype=torch.bfloat16), torch.tensor([255.0])
    assert measure(a, e).max_abs == 1.0  # in bfloat16, 255 is 255 but 256 - 255 of neighbours is lost for larger values
    big = torch.tensor([2.0**24], dtype=torch.float32)
    assert measure(big, torch.tensor([2.0**24 + 1], dtype=torch.float64)).max_abs == 1.0


def test_non_finite_values_count_unless_both_sides_agree() -> None:
    inf, nan = float("inf"), float("nan")
    d = measure(torch.tensor([inf, nan, 1.0, inf]), torch.tensor([inf, nan, nan, -inf]))
    assert (d.non_finite, d.equal) == (2, False)
    assert measure(torch.tensor([inf, nan]), torch.tensor([inf, nan])).equal


def test_a_mask_leaves_elements_out() -> None:
    actual, expected = torch.tensor([[1.0, 9.0]]), torch.tensor([[1.0, 2.0]])
    d = measure(actual, expected, where=torch.tensor([[True, False]]))
    assert (d.max_abs, d.equal, d.numel) == (0.0, True, 1)


def test_unequal_shapes_are_refused_and_empty_ones_are_equal() -> None:
    with pytest.raises(ArgumentError, match=r"expected \[3\], got \[2\]"):
        measure(torch.ones(2), torch.ones(3))
    assert measure(torch.ones(0, 3), torch.ones(0, 3)).equal


@hypothesis.given(st.floats(min_value=2.0**-100, max_value=2.0**100, width=32))
def test_spacing_is_the_gap_to_the_next_float32(x: float) -> None:
    value = torch.tensor([x], dtype=torch.float32)
    gap = torch.nextafter(value, torch.full_like(value, torch.inf)).double() - value.double()
    assert float(spacing(value.double(), torch.float32)) == float(gap)


@hypothesis.given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_unravel_inverts_flattening(shape: list[int], data: st.DataObject) -> None:
    numbers = torch.arange(torch.Size(shape).numel()).view(shape)
    flat = data.draw(st.integers(0, numbers.numel() - 1))
    assert int(numbers[unravel(flat, tuple(shape))]) == flat
