"""GPT-2's config.json -> one small frozen record, named by the file's own keys and checked once.

In: the parsed JSON object of config.json. Out: a ``GPT2Config`` whose every field the model honours, and the
shape of every parameter that such a model has.
Source of the defaults: ``transformers`` GPT2Config, which mirrors OpenAI's hparams.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from labkit.errors import ConfigError, UnknownNameError

ACTIVATIONS = (
    "gelu_new",
    "gelu_pytorch_tanh",
    "gelu_python_tanh",
    "gelu_accurate",
    "gelu_fast",
    "gelu",
    "gelu_python",
    "quick_gelu",
    "relu",
    "silu",
    "swish",
    "tanh",
)
"""Names of ``activation_function`` that the model computes."""

ALIASES = {
    "n_ctx": "n_positions",
    "max_position_embeddings": "n_positions",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
"""Other keys under which config files keep a field: OpenAI's own, and the names transformers shares between models."""

REFUSED = {
    "add_cross_attention": "labkit runs decoder-only GPT-2",
    "is_encoder_decoder": "labkit runs decoder-only GPT-2",
    "pruned_heads": "labkit has no blocks of unequal width; save the model without pruning",
    "quantization_config": "labkit computes with stored floating-point weights; dequantize and save again",
}
"""Keys that change what is computed in a way the model does not follow, unless false, null or empty."""


_HARMLESS = (
    "_name_or_path _num_labels architectures attn_pdrop bad_words_ids begin_suppress_tokens bos_token_id "
    "chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype "
    "early_stopping embd_pdrop encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty "
    "finetuning_task forced_bos_token_id forced_eos_token_id gradient_checkpointing id2label initializer_range "
    "is_decoder label2id length_penalty max_length min_length model_type no_repeat_ngram_size num_beam_groups "
    "num_beams num_labels num_return_sequences output_attentions output_hidden_states output_past output_scores "
    "pad_token_id predict_special_tokens prefix problem_type remove_invalid_values repetition_penalty resid_pdrop "
    "return_dict return_dict_in_generate sep_token_id summary_activation summary_first_dropout "
    "summary_proj_to_labels summary_type summary_use_proj suppress_tokens task_specific_params temperature "
    "tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p torch_dtype torchscript "
    "transformers_version typical_p use_bfloat16 use_cache n_special"
)
WITHOUT_EFFECT = frozenset(_HARMLESS.split())
"""Keys that config files of GPT-2 have had and that change no logit: names, dropout, generation, other heads."""


MAX_SIZE = 2**31 - 1
"""Largest size of any axis: what a 32-bit index reaches."""
MAX_LAYERS = 10_000
"""Most blocks; a mistaken number above would make the parameter table itself fill the memory."""


@dataclass(frozen=True, kw_only=True)
class GPT2Config:
    """The fields of config.json that change what a GPT-2 computes; raises ``ConfigError`` for values that make no sense.

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

    def __post_init__(self) -> None:
        _check(self)

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


def parameter_shapes(config: GPT2Config) -> dict[str, tuple[int, ...]]:
    """Every parameter's name, as in the released files, and its shape; a block's four Conv1D weights are [in, out].

    A tied head has no parameter of its own.

    >>> import math
    >>> shapes = parameter_shapes(GPT2Config())
    >>> shapes["h.0.attn.c_attn.weight"], sum(math.prod(shape) for shape in shapes.values())
    ((768, 2304), 124439808)
    """
    n_embd, inner = config.n_embd, config.inner
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (config.vocab_size, n_embd),
        "wpe.weight": (config.n_positions, n_embd),
    }
    for i in range(config.n_layer):
        shapes |= {
            f"h.{i}.ln_1.weight": (n_embd,),
            f"h.{i}.ln_1.bias": (n_embd,),
            f"h.{i}.attn.c_attn.weight": (n_embd, 3 * n_embd),
            f"h.{i}.attn.c_attn.bias": (3 * n_embd,),
            f"h.{i}.attn.c_proj.weight": (n_embd, n_embd),
            f"h.{i}.attn.c_proj.bias": (n_embd,),
            f"h.{i}.ln_2.weight": (n_embd,),
            f"h.{i}.ln_2.bias": (n_embd,),
            f"h.{i}.mlp.c_fc.weight": (n_embd, inner),
            f"h.{i}.mlp.c_fc.bias": (inner,),
            f"h.{i}.mlp.c_proj.weight": (inner, n_embd),
            f"h.{i}.mlp.c_proj.bias": (n_embd,),
        }
    shapes |= {"ln_f.weight": (n_embd,), "ln_f.bias": (n_embd,)}
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, n_embd)
    return shapes


def parse_config(fields: Mapping[str, Any], *, where: object = "config.json") -> GPT2Config:
    """The record of a parsed config.json; raises ``ConfigError`` naming the field that cannot be honoured.

    >>> parse_config({"model_type": "gpt2", "n_layer": 6, "n_ctx": 512}).n_positions
    512
    >>> parse_config({"model_type": "llama"})
    Traceback (most recent call last):
    labkit.errors.ConfigError: config.json: model_type is not GPT-2's (expected gpt2, got 'llama'); ...
    """
    for name in fields:
        if type(name) is not str:
            raise ConfigError("a field's name is not a text", where=where, got=repr(name))
    model_type = fields.get("model_type", "gpt2")
    if model_type != "gpt2":
        raise ConfigError(
            "model_type is not GPT-2's",
            where=where,
            expected="gpt2",
            got=repr(model_type),
            fix="labkit reads GPT-2 checkpoints only",
        )
    for name, reason in REFUSED.items():
        if fields.get(name):
            raise ConfigError(f"{name} is set", where=where, got=repr(fields[name]), fix=reason)
    stated = {name: fields[name] for name in _FIELDS if name in fields}
    for alias, name in ALIASES.items():
        if alias in fields:
            stated.setdefault(name, fields[alias])
    try:
        return GPT2Config(**stated)
    except ConfigError as error:
        error.where = where
        raise


def config_notes(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """What ``parse_config`` took from elsewhere than a field's own key, or passed over, a line each.

    >>> full = {name: getattr(GPT2Config(), name) for name in GPT2Config.__dataclass_fields__}
    >>> config_notes({**full, "n_ctx": 512})
    ('n_ctx is 512 but n_positions is 1024: n_positions is used',)
    >>> config_notes({name: value for name, value in full.items() if name != "layer_norm_epsilon"})
    ('layer_norm_epsilon is not stated: 1e-05, the default of GPT-2, is used',)
    """
    notes = []
    stated = {name: fields[name] for name in _FIELDS if name in fields}
    for alias, name in ALIASES.items():
        if alias in fields and name not in stated:
            stated[name] = fields[alias]
            notes.append(f"{name} is not stated: {fields[alias]!r} is taken from {alias}")
        elif alias in fields and fields[alias] != stated[name]:
            notes.append(f"{alias} is {fields[alias]!r} but {name} is {stated[name]!r}: {name} is used")
    for name in _FIELDS:
        if name not in stated and name != "n_inner":
            notes.append(f"{name} is not stated: {getattr(GPT2Config, name)!r}, the default of GPT-2, is used")
    unknown = sorted(set(fields) - set(_FIELDS) - set(ALIASES) - set(REFUSED) - WITHOUT_EFFECT)
    if unknown:
        notes.append(f"GPT-2 has no config field {', '.join(unknown)}: without effect here")
    return tuple(notes)


_FIELDS = tuple(field.name for field in fields(GPT2Config))


def _check(config: GPT2Config) -> None:
    for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner"):
        value = getattr(config, name)
        if name == "n_inner" and value is None:
            continue
        largest = MAX_LAYERS if name == "n_layer" else MAX_SIZE
        if type(value) is not int or not 1 <= value <= largest:
            raise ConfigError(f"{name} is not a size", expected=f"1 to {largest:,}", got=repr(value)[:40])
    for name in (
        "scale_attn_weights",
        "scale_attn_by_inverse_layer_idx",
        "reorder_and_upcast_attn",
        "tie_word_embeddings",
    ):
        if type(getattr(config, name)) is not bool:
            raise ConfigError(f"{name} is not a flag", expected="true or false", got=repr(getattr(config, name)))
    epsilon = config.layer_norm_epsilon
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < 1:
        raise ConfigError("layer_norm_epsilon is out of range", expected="a number in (0, 1)", got=repr(epsilon))
    if config.n_embd % config.n_head:
        raise ConfigError(
            f"n_embd = {config.n_embd} does not divide into n_head = {config.n_head} heads",
            fix="correct n_head or n_embd",
        )
    if config.activation_function not in ACTIVATIONS:
        unknown = UnknownNameError.near("activation_function", config.activation_function, ACTIVATIONS)
        raise ConfigError(unknown.what, fix=unknown.fix)
