"""Memory for large tensors, in huge pages where the system has them: filled and read faster than in small ones.

A weight that is read over and over, as in decoding, is spread over tens of thousands of pages of 4 KiB; whoever reads
it looks up the place of each. In pages of 2 MiB there are five hundred times fewer.
"""

import mmap

import torch
from torch import Tensor

HUGE_NBYTES = 1 << 22
"""From so many bytes on, two huge pages of the common size."""


def memory(nbytes: int) -> Tensor:
    """A new uint8 tensor [nbytes] on the CPU, its values not set.

    >>> memory(5).shape, memory(HUGE_NBYTES).shape
    (torch.Size([5]), torch.Size([4194304]))
    """
    if nbytes >= HUGE_NBYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            pages.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # no room for it, or a kernel without huge pages: torch asks again, and says what is missing
            return torch.empty(nbytes, dtype=torch.uint8)
        return torch.frombuffer(pages, dtype=torch.uint8)
    return torch.empty(nbytes, dtype=torch.uint8)


def in_order(tensor: Tensor) -> Tensor:
    """The tensor in row-major order: itself where it is, else a copy of its values.

    >>> turned = torch.arange(6.0).view(2, 3).t()
    >>> in_order(turned).stride(), torch.equal(in_order(turned), turned)
    ((2, 1), True)
    """
    if tensor.is_contiguous() or tensor.device.type != "cpu":
        return tensor.contiguous()
    return memory(tensor.nbytes).view(tensor.dtype).view(tensor.shape).copy_(tensor)
