"""Large memory is taken whole, in huge pages or without them, and copies keep every value."""

import mmap

import pytest
import torch

from labkit.storage.memory import HUGE_NBYTES, in_order, memory


@pytest.mark.parametrize("way", ["huge", "none", "refused"])
@pytest.mark.parametrize("nbytes", [0, 3, HUGE_NBYTES - 1, HUGE_NBYTES, 3 * HUGE_NBYTES + 17])
def test_memory_of_any_size_holds_what_is_written(way: str, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "none":
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    if way == "refused":
        monkeypatch.setattr(mmap, "MADV_HUGEPAGE", -1, raising=False)  # madvise knows no such advice
    expected = (torch.arange(nbytes) % 251).to(torch.uint8)
    assert torch.equal(memory(nbytes).copy_(expected), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("rows", [3, 3000])
def test_a_copy_in_order_has_the_same_values(dtype: torch.dtype, rows: int) -> None:
    tensor = torch.randn(rows, 701).to(dtype)
    assert in_order(tensor) is tensor
    turned = in_order(tensor.t())
    assert turned.is_contiguous()
    assert torch.equal(turned, tensor.t())
