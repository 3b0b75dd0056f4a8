"""GPT-2's forward in NumPy float64, written for the tests from the papers and independent of labkit and transformers.

In: ``{released name: array}``, the fields of config.json, ids [batch, pos]. Out: every stage under its tap's name.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_erf = np.vectorize(math.erf, otypes=[np.float64])


def _tanh_gelu(x: Array, root: float = math.sqrt(2.0 / math.pi)) -> Array:
    return 0.5 * x * (1.0 + np.tanh(root * (x + 0.044715 * x**3)))


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


ACTIVATIONS = {
    "gelu_new": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "gelu_python_tanh": _tanh_gelu,
    "gelu_accurate": _tanh_gelu,
    "gelu_fast": lambda x: _tanh_gelu(x, 0.7978845608),
    "gelu": lambda x: 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0))),
    "gelu_python": lambda x: 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0))),
    "quick_gelu": lambda x: x * _sigmoid(1.702 * x),
    "relu": lambda x: np.maximum(x, 0.0),
    "silu": lambda x: x * _sigmoid(x),
    "swish": lambda x: x * _sigmoid(x),
    "tanh": np.tanh,
}


def _norm(x: Array, weight: Array, bias: Array, epsilon: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * weight + bias


def stages(parameters: Mapping[str, Any], config: Mapping[str, Any], ids: Any) -> dict[str, Array]:
    """Every stage of the forward pass, in order, in float64."""
    p = {name: np.asarray(each, dtype=np.float64) for name, each in parameters.items()}
    ids = np.asarray(ids)
    batch, pos = ids.shape
    heads, epsilon = config["n_head"], config["layer_norm_epsilon"]
    out: dict[str, Array] = {"wte": p["wte.weight"][ids], "wpe": p["wpe.weight"][np.arange(pos)]}
    x = out["embed"] = out["wte"] + out["wpe"]
    dim = x.shape[-1] // heads
    future = np.triu(np.ones((pos, pos), dtype=bool), k=1)
    for i in range(config["n_layer"]):
        h = f"h.{i}."
        normed = out[h + "ln_1"] = _norm(x, p[h + "ln_1.weight"], p[h + "ln_1.bias"], epsilon)
        packed = normed @ p[h + "attn.c_attn.weight"] + p[h + "attn.c_attn.bias"]
        q, k, v = (
            each.reshape(batch, pos, heads, dim).swapaxes(1, 2) for each in np.split(packed, 3, axis=-1)
        )  # each [batch, head, pos, head_dim]
        out[h + "attn.q"], out[h + "attn.k"], out[h + "attn.v"] = q, k, v
        scale = 1.0 / math.sqrt(dim) if config["scale_attn_weights"] else 1.0
        if config["scale_attn_by_inverse_layer_idx"]:
            scale /= i + 1
        scores = out[h + "attn.scores"] = np.einsum("bhqd,bhkd->bhqk", q, k) * scale
        masked = np.where(future, -np.inf, scores)
        weights = np.exp(masked - masked.max(-1, keepdims=True))
        pattern = out[h + "attn.pattern"] = weights / weights.sum(-1, keepdims=True)
        z = out[h + "attn.z"] = np.einsum("bhqk,bhkd->bhqd", pattern, v)
        merged = z.swapaxes(1, 2).reshape(batch, pos, heads * dim)
        attended = out[h + "attn.out"] = merged @ p[h + "attn.c_proj.weight"] + p[h + "attn.c_proj.bias"]
        x = out[h + "resid_mid"] = x + attended
        normed = out[h + "ln_2"] = _norm(x, p[h + "ln_2.weight"], p[h + "ln_2.bias"], epsilon)
        pre = out[h + "mlp.pre"] = normed @ p[h + "mlp.c_fc.weight"] + p[h + "mlp.c_fc.bias"]
        post = out[h + "mlp.post"] = ACTIVATIONS[config["activation_function"]](pre)
        mlp = out[h + "mlp.out"] = post @ p[h + "mlp.c_proj.weight"] + p[h + "mlp.c_proj.bias"]
        x = out[h + "resid_post"] = x + mlp
    final = out["ln_f"] = _norm(x, p["ln_f.weight"], p["ln_f.bias"], epsilon)
    head = p["wte.weight"] if config["tie_word_embeddings"] else p["lm_head.weight"]
    out["logits"] = final @ head.T
    return out
