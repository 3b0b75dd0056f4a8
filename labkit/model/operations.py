"""The operations of a GPT-2, one small function each: tensors in, tensors out, no state.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; the arithmetic is that of OpenAI's
``model.py``. ``Operations`` lists which function is used at which step, in order of computation, so that one
step of one block can be exchanged without touching the rest.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


def embed(ids: Tensor, table: Tensor) -> Tensor:
    """Row ``ids`` of ``table``: the look-up behind both wte (token ids) and wpe (positions).

    >>> embed(torch.tensor([2, 0]), torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])).tolist()
    [[3.0, 3.0], [1.0, 1.0]]
    """
    return functional.embedding(ids, table)  # [..., n_embd]


def add(stream: Tensor, branch: Tensor) -> Tensor:
    """The sum of two embeddings, or of the residual stream and what a branch adds to it."""
    return stream + branch  # [batch, pos, n_embd]


def add_residual(stream: Tensor, normed: Tensor, branch: Tensor) -> Tensor:
    """The residual stream with what a branch computed from its norm added; ``normed`` itself is not part of the sum."""
    return add(stream, branch)  # [batch, pos, n_embd]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis; the variance divides by N, not N - 1.

    >>> layer_norm(torch.tensor([[1.0, 3.0]]), torch.ones(2), torch.zeros(2), epsilon=0.0).tolist()
    [[-1.0, 1.0]]
    """
    return functional.layer_norm(x, weight.shape, weight, bias, epsilon)  # [batch, pos, n_embd]


def conv1d(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x @ weight + bias with ``weight`` stored [in, out], the transpose of what nn.Linear stores.

    >>> conv1d(torch.ones(1, 2), torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.zeros(3)).tolist()
    [[5.0, 7.0, 9.0]]
    """
    rows = torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight)  # [batch * pos, out]
    return rows.view(*x.shape[:-1], weight.shape[-1])  # [batch, pos, out]


def split_heads(packed: Tensor, n_head: int) -> tuple[Tensor, Tensor, Tensor]:
    """The output of c_attn as queries, keys and values: thirds of the last axis first, then heads within each third.

    >>> q, k, v = split_heads(torch.arange(12.0).view(1, 1, 12), n_head=2)
    >>> q[0, :, 0].tolist(), v[0, :, 0].tolist()
    ([[0.0, 1.0], [2.0, 3.0]], [[8.0, 9.0], [10.0, 11.0]])
    """
    batch, pos, width = packed.shape
    thirds = packed.view(batch, pos, 3, n_head, width // (3 * n_head))  # [batch, pos, 3, head, head_dim]
    q, k, v = thirds.permute(2, 0, 3, 1, 4)  # each [batch, head, pos, head_dim]
    return q, k, v


def attention_scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """q @ k.T * scale, before any mask."""
    return (q @ k.transpose(-1, -2)) * scale  # [batch, head, pos_q, pos_k]


def attention_pattern(scores: Tensor, visible: Tensor) -> Tensor:
    """Softmax of the scores over the keys that are ``visible`` ([..., pos_q, pos_k], True where a query may look).

    >>> attention_pattern(torch.zeros(2, 2), torch.tensor([[True, False], [True, True]])).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    return scores.masked_fill(~visible, -math.inf).softmax(dim=-1)  # [batch, head, pos_q, pos_k]


def attention_mix(pattern: Tensor, v: Tensor) -> Tensor:
    """pattern @ v: each query's weighted mean of the values."""
    return pattern @ v  # [batch, head, pos, head_dim]


def merge_heads(z: Tensor) -> Tensor:
    """The heads side by side again: head after head along the last axis."""
    batch, head, pos, head_dim = z.shape
    return z.transpose(1, 2).reshape(batch, pos, head * head_dim)  # [batch, pos, n_embd]


def unembed(x: Tensor, table: Tensor) -> Tensor:
    """x @ table.T: the logit of a token is its embedding's dot product with the stream."""
    return functional.linear(x, table)  # [batch, pos, vocab]


def gelu_tanh(x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), GPT-2's own activation (gelu_new)."""
    return functional.gelu(x, approximate="tanh")


def gelu_erf(x: Tensor) -> Tensor:
    """0.5 x (1 + erf(x / sqrt(2))), the exact GELU."""
    return functional.gelu(x)


def gelu_fast(x: Tensor) -> Tensor:
    """GELU by tanh with sqrt(2/pi) cut to ten digits, as ``gelu_fast`` was first written."""
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def gelu_sigmoid(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), the quick approximation."""
    return x * torch.sigmoid(1.702 * x)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_python_tanh": gelu_tanh,
    "gelu_accurate": gelu_tanh,
    "gelu_fast": gelu_fast,
    "gelu": gelu_erf,
    "gelu_python": gelu_erf,
    "quick_gelu": gelu_sigmoid,
    "relu": functional.relu,
    "silu": functional.silu,
    "swish": functional.silu,
    "tanh": torch.tanh,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function that config.json calls ``name`` (one of ``labkit.config.ACTIVATIONS``).

    >>> activation("relu")(torch.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return _ACTIVATIONS[name]


@dataclass(frozen=True, kw_only=True)
class Operations:
    """Which function computes which step; the fields stand in the order of computation.

    A fault is one field exchanged, in the whole model or (``GPT2(..., block_operations={3: faulty})``) in one block:

    >>> import dataclasses
    >>> transposed = dataclasses.replace(Operations(), attn_c_proj=lambda x, weight, bias: conv1d(x, weight.T, bias))
    """

    wte: Callable[[Tensor, Tensor], Tensor] = embed
    wpe: Callable[[Tensor, Tensor], Tensor] = embed
    embed: Callable[[Tensor, Tensor], Tensor] = add
    ln_1: Callable[[Tensor, Tensor, Tensor, float], Tensor] = layer_norm
    c_attn: Callable[[Tensor, Tensor, Tensor], Tensor] = conv1d
    split_heads: Callable[[Tensor, int], tuple[Tensor, Tensor, Tensor]] = split_heads
    scores: Callable[[Tensor, Tensor, float], Tensor] = attention_scores
    pattern: Callable[[Tensor, Tensor], Tensor] = attention_pattern
    z: Callable[[Tensor, Tensor], Tensor] = attention_mix
    merge_heads: Callable[[Tensor], Tensor] = merge_heads
    attn_c_proj: Callable[[Tensor, Tensor, Tensor], Tensor] = conv1d
    resid_mid: Callable[[Tensor, Tensor, Tensor], Tensor] = add_residual
    ln_2: Callable[[Tensor, Tensor, Tensor, float], Tensor] = layer_norm
    c_fc: Callable[[Tensor, Tensor, Tensor], Tensor] = conv1d
    activation: Callable[[Tensor], Tensor] | None = None  # None: the one that the config names
    mlp_c_proj: Callable[[Tensor, Tensor, Tensor], Tensor] = conv1d
    resid_post: Callable[[Tensor, Tensor, Tensor], Tensor] = add_residual
    ln_f: Callable[[Tensor, Tensor, Tensor, float], Tensor] = layer_norm
    lm_head: Callable[[Tensor, Tensor], Tensor] = unembed
