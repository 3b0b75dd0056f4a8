"""A folder's config.json -> ``GPT2Config`` and what to say about it; without one, sizes from the tensors' shapes."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from labkit.checkpoint.names import block_of, parse_name
from labkit.config import GPT2Config, config_notes, parse_config
from labkit.errors import CheckpointError, ConfigError
from labkit.outside import NotJson, parse_json, read_regular

_CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
ASSUMED_HEAD_DIM = 64
"""Elements a head has in every GPT-2 that OpenAI released; nothing in the tensors' shapes tells it."""


def read_config_fields(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; raises ``MissingFileError``, ``FileAccessError`` or ``ConfigError``."""
    try:
        fields = parse_json(read_regular(path, what="config file"))
    except NotJson as error:
        raise ConfigError(f"not JSON: {error}", where=path) from error
    if not isinstance(fields, dict):
        raise ConfigError("not a JSON object", where=path, expected="{…}", got=type(fields).__name__)
    return fields


def read_config(path: Path, stored: Collection[str]) -> tuple[GPT2Config, tuple[str, ...]]:
    """The config in the file ``path``, what it took from elsewhere than a field's own key, and whether it knows the
    dtypes in which the weights are ``stored``."""
    fields = read_config_fields(path)
    return parse_config(fields, where=path), (*config_notes(fields), *_dtype_notes(fields, stored))


def _dtype_notes(fields: Mapping[str, Any], stored: Collection[str]) -> tuple[str, ...]:
    key = "dtype" if "dtype" in fields else "torch_dtype"
    if fields.get(key) is None or set(stored) == {_CODES.get(str(fields[key]))}:
        return ()
    return (f"config.json states {key} {fields[key]!r}, the weights are stored as {', '.join(sorted(stored))}",)


def infer_config(shapes: Mapping[str, tuple[int, ...]], *, where: str) -> tuple[GPT2Config, tuple[str, ...]]:
    """Sizes from tensors' shapes; ``head_dim`` is assumed to be 64, and everything else to be as in GPT-2.

    >>> shapes = {"wte.weight": (300, 128), "wpe.weight": (64, 128), "h.0.mlp.c_fc.weight": (128, 512)}
    >>> config, notes = infer_config(shapes, where="gpt2")
    >>> config.n_head, config.n_layer, config.n_positions
    (2, 1, 64)
    """
    bare = {parse_name(name).bare: shape for name, shape in shapes.items()}
    table = bare.get("wte.weight", bare.get("lm_head.weight"))
    positions, inner = bare.get("wpe.weight"), bare.get("h.0.mlp.c_fc.weight")
    for name, shape in (("wte.weight", table), ("wpe.weight", positions), ("h.0.mlp.c_fc.weight", inner)):
        if shape is None or len(shape) != 2:
            raise CheckpointError(
                f"there is no config.json, and {name} is not there to take sizes from",
                where=where,
                fix="give the folder a config.json",
            )
    assert table is not None
    assert positions is not None
    assert inner is not None
    n_embd = table[1]
    if n_embd % ASSUMED_HEAD_DIM:
        raise CheckpointError(
            f"there is no config.json, and n_embd = {n_embd} does not divide into heads of {ASSUMED_HEAD_DIM}",
            where=where,
            fix="give the folder a config.json that states n_head",
        )
    config = parse_config(
        {
            "vocab_size": table[0],
            "n_positions": positions[0],
            "n_embd": n_embd,
            "n_layer": 1 + max(block for name in bare if (block := block_of(name)) is not None),
            "n_head": n_embd // ASSUMED_HEAD_DIM,
            "n_inner": inner[1],
        },
        where=where,
    )
    note = (
        f"there is no config.json: sizes are taken from the tensors' shapes, n_head = {config.n_head} from an assumed "
        f"head_dim of {ASSUMED_HEAD_DIM}, activation_function {config.activation_function}, layer_norm_epsilon "
        f"{config.layer_norm_epsilon} and the flags from GPT-2"
    )
    return config, (note,)
