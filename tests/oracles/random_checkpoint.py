"""Random GPT-2 checkpoints written by transformers' own save_pretrained, with every parameter redrawn.

A GPT-2 fresh from transformers has zero biases and unit LayerNorms, so that dropped biases or swapped norms change
nothing. Here every parameter is drawn with standard deviation 0.2 around its usual centre (1 for LayerNorm weights,
0 for the rest), from a seed.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

TINY: dict[str, Any] = {
    "vocab_size": 97,
    "n_positions": 32,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 3,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
"""Small, and with unlike sizes, so that no two axes can be confused without a shape error."""


def redraw(model: torch.nn.Module, *, seed: int, std: float = 0.2) -> None:
    """Draw every parameter of the model anew."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
            parameter.copy_(centre + std * torch.randn(parameter.shape, generator=generator))


def build(*, seed: int = 0, std: float = 0.2, **fields: Any) -> GPT2LMHeadModel:
    """The random model, in evaluation mode, its attention eager."""
    model = GPT2LMHeadModel(GPT2Config(**{**TINY, **fields}))
    redraw(model, seed=seed, std=std)
    model.set_attn_implementation("eager")
    return model.eval()


def write(
    folder: Path, *, seed: int = 0, std: float = 0.2, dtype: torch.dtype = torch.float32, **fields: Any
) -> GPT2LMHeadModel:
    """Save the random model in ``folder`` as transformers does; the model, in the dtype it was saved in."""
    model = build(seed=seed, std=std, **fields).to(dtype)
    model.save_pretrained(folder)
    return model


def random_fields(seed: int) -> dict[str, Any]:
    """A random config: sizes, activation, epsilon and flags all drawn from the seed."""
    generator = torch.Generator().manual_seed(1000 + seed)

    def pick(options: list[Any]) -> Any:
        return options[int(torch.randint(len(options), (1,), generator=generator))]

    n_head = pick([1, 2, 3, 4, 6])
    return {
        "vocab_size": pick([50, 97, 256, 300]),
        "n_positions": pick([16, 33, 64]),
        "n_head": n_head,
        "n_embd": n_head * pick([4, 7, 8, 10, 15, 16]),
        "n_layer": pick([1, 2, 3, 5]),
        "n_inner": pick([None, None, 20, 33, 64]),
        "activation_function": pick(
            ["gelu_new", "gelu", "gelu_pytorch_tanh", "relu", "silu", "gelu_fast", "quick_gelu", "tanh"]
        ),
        "layer_norm_epsilon": pick([1e-5, 1e-6, 1e-3, 1e-12]),
        "scale_attn_weights": pick([True, True, False]),
        "scale_attn_by_inverse_layer_idx": pick([False, False, True]),
        "reorder_and_upcast_attn": pick([False, False, True]),
        "tie_word_embeddings": pick([True, True, False]),
    }
