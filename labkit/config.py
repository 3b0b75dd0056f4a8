"""GPT-2's config.json -> one small frozen record, named by the file's own keys and checked once.

In: the parsed JSON object of config.json. Out: a ``GPT2Config`` whose every field the model honours.
Source of the defaults: ``transformers`` GPT2Config, which mirrors OpenAI's hparams.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.errors import ConfigError, UnknownNameError

ACTIVATIONS = ("gelu_new", "gelu", "gelu_pytorch_tanh", "gelu_fast", "gelu_python", "relu", "silu", "swish")
"""Names of ``activation_function`` that the model computes."""


@dataclass(frozen=True, kw_only=True)
class GPT2Config:
    """The fields of config.json that change what a GPT-2 computes.

    >>> config = GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=64, n_positions=16)
    >>> config.head_dim, config.inner, config.scaling(block=0)
    (4, 32, 0.5)
    """

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    reorder_and_upcast_attn: bool = False
    tie_word_embeddings: bool = True

    @property
    def head_dim(self) -> int:
        """Elements of one head's query, key or value."""
        return self.n_embd // self.n_head

    @property
    def inner(self) -> int:
        """Width of the MLP's hidden layer: ``n_inner``, or four times ``n_embd`` where that is null."""
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

    def scaling(self, *, block: int) -> float:
        """The factor on q @ k.T in ``block``."""
        scale = self.head_dim**-0.5 if self.scale_attn_weights else 1.0
        return scale / (block + 1) if self.scale_attn_by_inverse_layer_idx else scale


def parse_config(fields: Mapping[str, Any], *, where: object = "config.json") -> GPT2Config:
    """The record of a parsed config.json; raises ``ConfigError`` naming the field that cannot be honoured.

    >>> parse_config({"model_type": "gpt2", "n_layer": 6, "n_ctx": 512}).n_positions
    512
    >>> parse_config({"model_type": "llama"})
    Traceback (most recent call last):
    labkit.errors.ConfigError: config.json: model_type is not GPT-2's (expected gpt2, got 'llama'); labkit reads GPT-2 checkpoints only
    """
    model_type = fields.get("model_type", "gpt2")
    if model_type != "gpt2":
        raise ConfigError(
            "model_type is not GPT-2's",
            where=where,
            expected="gpt2",
            got=repr(model_type),
            fix="labkit reads GPT-2 checkpoints only",
        )
    if fields.get("add_cross_attention"):
        raise ConfigError("add_cross_attention is true", where=where, fix="labkit runs decoder-only GPT-2")
    known = dict(fields)
    known.setdefault("n_positions", fields.get("n_ctx", GPT2Config.n_positions))
    config = GPT2Config(**{name: known[name] for name in GPT2Config.__dataclass_fields__ if name in known})
    _check(config, where)
    return config


def _check(config: GPT2Config, where: object) -> None:
    for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner"):
        value = getattr(config, name)
        if name == "n_inner" and value is None:
            continue
        if type(value) is not int or value < 1:
            raise ConfigError(f"{name} is not a size", where=where, expected="a whole number above 0", got=repr(value))
    for name in (
        "scale_attn_weights",
        "scale_attn_by_inverse_layer_idx",
        "reorder_and_upcast_attn",
        "tie_word_embeddings",
    ):
        if type(getattr(config, name)) is not bool:
            raise ConfigError(
                f"{name} is not a flag", where=where, expected="true or false", got=repr(getattr(config, name))
            )
    epsilon = config.layer_norm_epsilon
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < 1:
        raise ConfigError(
            "layer_norm_epsilon is out of range", where=where, expected="a number in (0, 1)", got=repr(epsilon)
        )
    if config.n_embd % config.n_head:
        raise ConfigError(
            f"n_embd = {config.n_embd} does not divide into n_head = {config.n_head} heads",
            where=where,
            fix="correct n_head or n_embd",
        )
    if config.activation_function not in ACTIVATIONS:
        unknown = UnknownNameError.near("activation_function", config.activation_function, ACTIVATIONS, where=where)
        raise ConfigError(unknown.what, where=where, fix=unknown.fix)
