"""The forward pass of GPT-2, to be read beside the paper: embed, blocks, final norm, unembed.

In: token ids, parameters by their released names, positions, and which keys each query sees. Out: logits.
Radford et al. 2019, section 2.3; Vaswani et al. 2017 for attention; pre-norm as in OpenAI's ``model.py``.
Every value is handed to ``tap`` under its stage's name, and the computation goes on with what ``tap`` returns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from labkit.config import GPT2Config
from labkit.model.operations import Operations, activation
from labkit.model.taps import Tap

Attention = Literal["eager", "sdpa"]
"""``eager``: scores, pattern and mix, each with its tap; ``sdpa``: one fused call that hides scores and pattern."""


FusedMask = Literal["causal", "none", "given"]


class Cache(Protocol):
    """Keys and values of positions already computed, as the attention of each block needs them."""

    @property
    def length(self) -> int:
        """Positions held before this pass."""

    def extend(self, block: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Take in a block's new keys and values, [batch, head, pos, head_dim]; all so far, the new ones last."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What one forward pass computes on, checked and on the model's device."""

    ids: Tensor  # [batch, pos]
    positions: Tensor  # [pos], or [batch, pos] where positions differ by row
    visible: Tensor  # [pos_q, pos_k] or [batch, 1, pos_q, pos_k]: True where a query may look at a key
    fused_mask: FusedMask  # the same for the fused attention, which is faster without a mask
    last_only: bool  # logits of the last position alone
    cache: Cache | None


@dataclass(frozen=True, kw_only=True)
class Network:
    """What stays the same from pass to pass."""

    config: GPT2Config
    parameters: Mapping[str, Tensor]
    operations: Operations
    block_operations: Mapping[int, Operations]
    attention: Attention


def forward(network: Network, inputs: Inputs, tap: Tap) -> Tensor:
    """Logits [batch, pos, vocab] of the next token at every position (of the last alone: [batch, 1, vocab])."""
    config, p, ops = network.config, network.parameters, network.operations
    tokens = tap("wte", ops.wte(inputs.ids, p["wte.weight"]))  # [batch, pos, n_embd]
    places = tap("wpe", ops.wpe(inputs.positions, p["wpe.weight"]))  # [pos, n_embd] or [batch, pos, n_embd]
    stream = tap("embed", ops.embed(tokens, places))  # [batch, pos, n_embd]
    for i in range(config.n_layer):
        stream = block(network, inputs, tap, i, stream)  # [batch, pos, n_embd]
    if inputs.last_only:
        stream = stream[:, -1:]  # [batch, 1, n_embd]
    return unembed(network, tap, stream)  # [batch, pos, vocab]


def block(network: Network, inputs: Inputs, tap: Tap, i: int, stream: Tensor) -> Tensor:
    """One block: attention, then the MLP, each computed from the norm of the residual stream and added to it."""
    ops, epsilon, h = network.block_operations.get(i, network.operations), network.config.layer_norm_epsilon, f"h.{i}."
    p = network.parameters
    normed = tap(
        h + "ln_1", ops.ln_1(stream, p[h + "ln_1.weight"], p[h + "ln_1.bias"], epsilon)
    )  # [batch, pos, n_embd]
    attended = attention(network, inputs, tap, i, normed)  # [batch, pos, n_embd]
    stream = tap(h + "resid_mid", ops.resid_mid(stream, normed, attended))  # [batch, pos, n_embd]
    normed = tap(
        h + "ln_2", ops.ln_2(stream, p[h + "ln_2.weight"], p[h + "ln_2.bias"], epsilon)
    )  # [batch, pos, n_embd]
    thought = mlp(network, tap, i, normed)  # [batch, pos, n_embd]
    return tap(h + "resid_post", ops.resid_post(stream, normed, thought))  # [batch, pos, n_embd]


def unembed(network: Network, tap: Tap, stream: Tensor) -> Tensor:
    """The final norm, then each position's dot product with every token's embedding."""
    config, p, ops = network.config, network.parameters, network.operations
    normed = tap(
        "ln_f", ops.ln_f(stream, p["ln_f.weight"], p["ln_f.bias"], config.layer_norm_epsilon)
    )  # [batch, pos, n_embd]
    table = p["wte.weight"] if config.tie_word_embeddings else p["lm_head.weight"]  # [vocab, n_embd]
    return tap("logits", ops.lm_head(normed, table))  # [batch, pos, vocab]


def attention(network: Network, inputs: Inputs, tap: Tap, i: int, normed: Tensor) -> Tensor:
    """Causal self-attention of all heads of block ``i``; with a cache, the queries are the new positions only."""
    config, ops, h = network.config, network.block_operations.get(i, network.operations), f"h.{i}.attn."
    p = network.parameters
    packed = ops.c_attn(normed, p[h + "c_attn.weight"], p[h + "c_attn.bias"])  # [batch, pos, 3 * n_embd]
    q, k, v = ops.split_heads(tap(h + "c_attn", packed), config.n_head)  # each [batch, head, pos, head_dim]
    q, k, v = tap(h + "q", q), tap(h + "k", k), tap(h + "v", v)  # each [batch, head, pos, head_dim]
    if inputs.cache is not None:
        k, v = inputs.cache.extend(i, k, v)  # each [batch, head, pos_k, head_dim]
    mix = _fused if network.attention == "sdpa" else _eager
    z = tap(h + "z", mix(network, inputs, tap, i, q, k, v))  # [batch, head, pos, head_dim]
    merged = tap(h + "merged", ops.merge_heads(z))  # [batch, pos, n_embd]
    return tap(h + "out", ops.attn_c_proj(merged, p[h + "c_proj.weight"], p[h + "c_proj.bias"]))  # [batch, pos, n_embd]


def mlp(network: Network, tap: Tap, i: int, normed: Tensor) -> Tensor:
    """Two Conv1D layers with the activation between them, position by position."""
    ops, h = network.block_operations.get(i, network.operations), f"h.{i}.mlp."
    p = network.parameters
    activate = ops.activation or activation(network.config.activation_function)
    pre = tap(h + "pre", ops.c_fc(normed, p[h + "c_fc.weight"], p[h + "c_fc.bias"]))  # [batch, pos, n_inner]
    post = tap(h + "post", activate(pre))  # [batch, pos, n_inner]
    return tap(h + "out", ops.mlp_c_proj(post, p[h + "c_proj.weight"], p[h + "c_proj.bias"]))  # [batch, pos, n_embd]


def _eager(network: Network, inputs: Inputs, tap: Tap, i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    ops, h = network.block_operations.get(i, network.operations), f"h.{i}.attn."
    q, k = _upcast(network.config, q, k)
    scores = tap(h + "scores", ops.scores(q, k, network.config.scaling(block=i)))  # [batch, head, pos_q, pos_k]
    pattern = tap(h + "pattern", ops.pattern(scores, inputs.visible).to(v.dtype))  # [batch, head, pos_q, pos_k]
    return ops.z(pattern, v)  # [batch, head, pos, head_dim]


def _fused(network: Network, inputs: Inputs, tap: Tap, i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    dtype = v.dtype
    q, k, v = _upcast(network.config, q, k, v)
    z = functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=inputs.visible if inputs.fused_mask == "given" else None,
        is_causal=inputs.fused_mask == "causal",
        scale=network.config.scaling(block=i),
    )  # [batch, head, pos, head_dim]
    return z.to(dtype)


def _upcast(config: GPT2Config, *tensors: Tensor) -> tuple[Tensor, ...]:
    """``reorder_and_upcast_attn``: scores and softmax in float32 at least, whatever the weights' dtype."""
    if not config.reorder_and_upcast_attn:
        return tensors
    return tuple(each.to(torch.promote_types(each.dtype, torch.float32)) for each in tensors)
