"""transformers' model -> the same function with every sum taken in another order, and the way back for its taps.

The residual stream's channels, each head's dimensions and the MLP's neurons are renumbered at random: a GPT-2 so
renumbered computes the same function, but no dot product, mean or variance is summed in the order it was. With the
keys of the attention walked backwards, every sum of the forward pass has a new order. What such runs differ by is
rounding and nothing else: they measure the floor, and an order kept aside serves as a control.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.verification.reference import KeyOrder, build_reference, parameters_of


@dataclass(frozen=True)
class Order:
    """One renumbering: new place -> old place, for channels, query/key and value dimensions, and neurons."""

    channels: Tensor  # [n_embd]
    qk: Tensor  # [head_dim]
    v: Tensor  # [head_dim]
    neurons: Tensor  # [n_inner]
    key_order: KeyOrder

    @classmethod
    def of(cls, model: Any, seed: int) -> "Order":
        """The order of a seed for transformers' model."""
        config, inner = model.config, model.transformer.h[0].mlp.c_fc.weight.shape[1]
        return cls.draw(seed, n_embd=config.n_embd, n_head=config.n_head, n_inner=inner)

    @classmethod
    def draw(cls, seed: int, *, n_embd: int, n_head: int, n_inner: int) -> "Order":
        """The order of a seed; the keys are walked backwards for odd seeds."""
        generator = torch.Generator().manual_seed(seed)
        channels, qk, v, neurons = (
            torch.randperm(size, generator=generator) for size in (n_embd, n_embd // n_head, n_embd // n_head, n_inner)
        )
        return cls(channels, qk, v, neurons, key_order="backward" if seed % 2 else "forward")

    def renumber(self, weights: dict[str, Tensor], n_head: int) -> dict[str, Tensor]:
        """The parameters of the renumbered model."""
        n_embd = len(self.channels)
        head_starts = torch.arange(n_head)[:, None] * len(self.qk)
        qk, v = ((head_starts + dims).flatten() for dims in (self.qk, self.v))  # [n_embd]
        packed = torch.cat([qk, n_embd + qk, 2 * n_embd + v])  # [3 * n_embd]
        return {name: self._renumbered(name, tensor, packed, v) for name, tensor in weights.items()}

    def _renumbered(self, name: str, tensor: Tensor, packed: Tensor, v: Tensor) -> Tensor:
        if name.endswith("attn.c_attn.weight"):
            return tensor[self.channels][:, packed]  # [n_embd, 3 * n_embd]
        if name.endswith("attn.c_attn.bias"):
            return tensor[packed]  # [3 * n_embd]
        if name.endswith("attn.c_proj.weight"):
            return tensor[v][:, self.channels]  # [n_embd, n_embd]
        if name.endswith("mlp.c_fc.weight"):
            return tensor[self.channels][:, self.neurons]  # [n_embd, n_inner]
        if name.endswith("mlp.c_fc.bias"):
            return tensor[self.neurons]  # [n_inner]
        if name.endswith("mlp.c_proj.weight"):
            return tensor[self.neurons][:, self.channels]  # [n_inner, n_embd]
        return tensor[..., self.channels]  # tables, norms and the other biases: [..., n_embd]

    def restore(self, tap: str, value: Tensor) -> Tensor:
        """A tap of the renumbered model in the original numbering."""
        if tap == "logits" or tap.endswith((".scores", ".pattern")):
            return value
        places = self.channels
        if tap.endswith((".attn.q", ".attn.k")):
            places = self.qk
        elif tap.endswith((".attn.v", ".attn.z")):
            places = self.v
        elif tap.endswith((".mlp.pre", ".mlp.post")):
            places = self.neurons
        return value[..., places.argsort()]


def renumbered(model: Any, order: Order) -> Any:
    """transformers' model of the same function with its sums in another order; read its taps with ``order.restore``."""
    original = parameters_of(model)
    if original["lm_head.weight"].data_ptr() == original["wte.weight"].data_ptr():
        del original["lm_head.weight"]  # tied: renumbered once
    weights = order.renumber(original, model.config.n_head)
    return build_reference(model.config.to_dict(), weights, dtype=model.dtype)
