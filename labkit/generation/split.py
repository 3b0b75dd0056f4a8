"""The product of one row, shared between threads: the sum over the inputs cut into parts, a part a thread.

In: a float32 product of one row. Out: the same value. The plain product of one row runs on one thread however
many there are, and one thread does not keep memory busy. Cut along the inputs, each part of the weight lies in one
piece, so nothing is copied: the parts are views, multiplied in one batched product and added up.
"""

import torch
from torch import Tensor

PARTS_A_THREAD = 2
"""Two parts a thread, so that one that is held up holds up half as much."""


def parts_for(threads: int, *inputs: int) -> int:
    """Into how many parts every one of these numbers of inputs can be cut for so many threads; 1: not at all.

    >>> parts_for(2, 768, 3072), parts_for(1, 768), parts_for(2, 7)
    (4, 1, 1)
    """
    if threads < 2:
        return 1
    counts = range(PARTS_A_THREAD * threads, 1, -1)
    return next((parts for parts in counts if all(each % parts == 0 for each in inputs)), 1)


def split(weight: Tensor, parts: int) -> Tensor:
    """The weight [in, out] as parts [part, in / part, out]: a view."""
    return weight.view(parts, weight.shape[0] // parts, weight.shape[1])


def split_bias(bias: Tensor, parts: int) -> Tensor:
    """The bias as that of the first part, [part, 1, out]; the others have none."""
    spread = bias.new_zeros(parts, 1, bias.shape[0])
    spread[0, 0] = bias
    return spread


def split_product(bias: Tensor, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x @ weight + bias for x [1, in], as ``torch.addmm(bias, x, weight)``.

    >>> x, weight, bias = torch.randn(1, 16), torch.randn(16, 8), torch.randn(8)
    >>> ours = split_product(split_bias(bias, 4), x, split(weight, 4))
    >>> torch.allclose(ours, torch.addmm(bias, x, weight), atol=1e-5)
    True
    """
    parts = torch.baddbmm(bias, x.view(weight.shape[0], 1, weight.shape[1]), weight)  # [part, 1, out]
    return torch.sum(parts, 0, out=out)  # [1, out]


def split_unembed(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight for x [1, in], as ``torch.mm(x, weight)``."""
    return torch.bmm(x.view(weight.shape[0], 1, weight.shape[1]), weight).sum(0)  # [1, out]
