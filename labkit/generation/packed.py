"""Weights in oneDNN's own blocked layout, for passes over several rows on a CPU.

In: a product's weight [in, out]. Out: the same values, packed, and the product over them. Where a few rows share a
pass, this reads the weights once at nearly the speed of one row; the plain product takes up to three times as long.
The operators are those that torch's own compiler uses; where a build has none, ``available`` is False and the plain
product stays.
"""

import torch
from torch import Tensor


def available(like: Tensor) -> bool:
    """Whether weights like this one can be packed: float32 on a CPU, in a torch built with oneDNN."""
    built: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if like.device.type != "cpu" or like.dtype != torch.float32 or not built:
        return False
    return hasattr(torch.ops.mkldnn, "_linear_pointwise") and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def pack(weight: Tensor) -> Tensor:
    """The weight [in, out] as an opaque tensor that only ``packed_product`` reads."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.t().contiguous(), None)  # [out, in]
    return packed


def packed_product(bias: Tensor | None, x: Tensor, packed: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x @ weight + bias, as ``torch.addmm(bias, x, weight)``.

    >>> x, weight, bias = torch.randn(4, 16), torch.randn(16, 8), torch.randn(8)
    >>> torch.allclose(packed_product(bias, x, pack(weight)), torch.addmm(bias, x, weight), atol=1e-5)
    True
    """
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")  # [rows, out]
    return product if out is None else out.copy_(product)  # [rows, out]


def packed_unembed(x: Tensor, packed: Tensor) -> Tensor:
    """x @ weight, as ``torch.mm(x, weight)``."""
    return packed_product(None, x, packed)  # [rows, out]
