"""A small GPT-2 of nn.Modules with Linear layout, in the module names of nanoGPT and of minGPT; written for the tests.

``build(folder, ...)`` fills it from a checkpoint through the official library, transposing the Conv1D weights.
"""

import json
import math
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused, self.masked = heads, fused, True
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.attn_dropout = nn.Dropout(0.0)
        self.resid_dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        batch, pos, width = x.shape
        q, k, v = (
            part.view(batch, pos, self.heads, -1).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2)
        )  # each [batch, head, pos, head_dim]
        if self.fused:
            z = functional.scaled_dot_product_attention(q, k, v, is_causal=self.masked)  # [batch, head, pos, head_dim]
        else:
            scores = q @ k.transpose(2, 3) / math.sqrt(width / self.heads)  # [batch, head, pos_q, pos_k]
            if self.masked:
                scores = scores.masked_fill(torch.ones(pos, pos).triu(1).bool(), -math.inf)
            z = self.attn_dropout(scores.softmax(dim=-1)) @ v  # [batch, head, pos, head_dim]
        return self.resid_dropout(self.c_proj(z.transpose(1, 2).reshape(batch, pos, width)))  # [batch, pos, width]


class MLP(nn.Module):
    """nanoGPT's form: a module with its own forward."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, inner)
        self.gelu = nn.GELU(approximate="tanh")
        self.c_proj = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(self.gelu(self.c_fc(x)))  # [batch, pos, width]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, epsilon: float, *, style: str) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width, eps=epsilon), nn.LayerNorm(width, eps=epsilon)
        self.attn = Attention(width, heads, fused=style == "nanogpt")
        act = nn.GELU(approximate="tanh")
        parts = {"c_fc": nn.Linear(width, inner), "c_proj": nn.Linear(inner, width), "act": act}
        self.mlp: nn.Module = MLP(width, inner) if style == "nanogpt" else nn.ModuleDict(parts)
        self.style = style

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        if self.style == "nanogpt":
            return x + self.mlp(self.ln_2(x))  # [batch, pos, width]
        m = self.mlp
        return x + m["c_proj"](m["act"](m["c_fc"](self.ln_2(x))))  # [batch, pos, width]


class GPT(nn.Module):
    """``style="nanogpt"``: fused attention, last logits only unless targets are given; ``"mingpt"``: plain."""

    def __init__(self, config: dict[str, object], *, style: str) -> None:
        super().__init__()
        width, heads = int(config["n_embd"]), int(config["n_head"])
        epsilon, inner = float(config["layer_norm_epsilon"]), int(config["n_inner"] or 4 * width)
        blocks = [Block(width, heads, inner, epsilon, style=style) for _ in range(int(config["n_layer"]))]
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(int(config["vocab_size"]), width),
                "wpe": nn.Embedding(int(config["n_positions"]), width),
                "drop": nn.Dropout(0.0),
                "h": nn.ModuleList(blocks),
                "ln_f": nn.LayerNorm(width, eps=epsilon),
            }
        )
        self.lm_head = nn.Linear(width, int(config["vocab_size"]), bias=False)
        self.style = style

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        t = self.transformer
        positions = torch.arange(ids.shape[1])  # [pos]
        x = t["wte"](ids) + t["wpe"](positions if self.style == "nanogpt" else positions[None])  # [batch, pos, width]
        x = t["drop"](x)
        for block in t["h"]:
            x = block(x)  # [batch, pos, width]
        x = t["ln_f"](x)
        if self.style == "nanogpt" and targets is None:
            x = x[:, -1:]  # [batch, 1, width]
        return self.lm_head(x), None  # [batch, pos, vocab]


def build(folder: Path, *, style: str) -> GPT:
    """The model with the weights of ``folder``, in evaluation mode."""
    config = json.loads((folder / "config.json").read_text())
    model = GPT(config, style=style)
    state = {}
    for name, tensor in safetensors.torch.load_file(folder / "model.safetensors").items():
        full = name if name.startswith(("transformer.", "lm_head")) else f"transformer.{name}"
        conv = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        state[full] = tensor.T.contiguous() if conv else tensor
    state["lm_head.weight"] = state["transformer.wte.weight"]
    model.load_state_dict(state)
    return model.eval()


def functional_gpt(folder: Path) -> "Functional":
    """The same in plain functions, ids -> logits."""
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    return Functional(
        json.loads((folder / "config.json").read_text()),
        {name.removeprefix("transformer."): tensor for name, tensor in weights.items()},
    )


class Functional:
    """A forward pass over a dictionary of weights; ``gelu`` may be exchanged."""

    def __init__(self, config: dict[str, object], weights: dict[str, Tensor]) -> None:
        self.heads, self.layers = int(config["n_head"]), int(config["n_layer"])
        self.epsilon, self.w = float(config["layer_norm_epsilon"]), weights
        self.approximate = "tanh"

    def __call__(self, ids: Tensor) -> Tensor:
        w = self.w
        x = w["wte.weight"][ids] + w["wpe.weight"][: ids.shape[1]]  # [batch, pos, width]
        for i in range(self.layers):
            x = x + self._attention(self._norm(x, f"h.{i}.ln_1"), f"h.{i}.attn")
            inner = self._linear(self._norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")  # [batch, pos, inner]
            x = x + self._linear(functional.gelu(inner, approximate=self.approximate), f"h.{i}.mlp.c_proj")
        return self._norm(x, "ln_f") @ w["wte.weight"].T  # [batch, pos, vocab]

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale, shift = self.w[f"{name}.weight"], self.w[f"{name}.bias"]
        centred = x - x.mean(-1, keepdim=True)  # [batch, pos, width]
        return centred * (centred.square().mean(-1, keepdim=True) + self.epsilon).rsqrt() * scale + shift

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def _attention(self, x: Tensor, name: str) -> Tensor:
        batch, pos, width = x.shape
        qkv = self._linear(x, f"{name}.c_attn").view(batch, pos, 3, self.heads, -1)
        scores = torch.einsum("bqhd,bkhd->bhqk", qkv[:, :, 0], qkv[:, :, 1]) * (width // self.heads) ** -0.5
        scores = scores.masked_fill(torch.ones(pos, pos).triu(1).bool(), -math.inf)  # [batch, head, pos_q, pos_k]
        z = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), qkv[:, :, 2])  # [batch, pos, head, head_dim]
        return self._linear(z.reshape(batch, pos, width), f"{name}.c_proj")
