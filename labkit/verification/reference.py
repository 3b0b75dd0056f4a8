"""checkpoint folder -> transformers' own GPT-2, its weights read independently -> every tap of a forward.

The weights come through the official safetensors library and are named here, so that a misreading of labkit's own
reader or loader cannot become the truth. The taps are taken by public extension points (module hooks, the
registries of attention and mask functions); nothing stays attached afterwards, also when a forward raised.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from labkit.config import GPT2Config
from labkit.errors import CheckpointError, MissingFileError
from labkit.outside import parse_json, read_regular
from labkit.words import counted

ATTENTION = "labkit_taps_"
"""Each tapped forward registers its attention with transformers under this name and a number of its own."""

_NUMBERS = itertools.count()
_BUILDING = threading.Lock()
"""transformers keeps its log level and whether weights are initialised in globals: one model is built at a time."""
WRAPPERS = ("_orig_mod.", "module.", "model.", "transformer.")
KeyOrder = Literal["forward", "backward"]


def load_reference(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float64,
    weight_dtype: torch.dtype | None = None,
    config: GPT2Config | None = None,
) -> Any:
    """transformers' ``GPT2LMHeadModel`` in ``dtype`` on the weights of ``folder``.

    ``weight_dtype``: round the weights to this dtype first, as the engine under test declares it does.
    ``config``: what to use where the folder has no config.json. Raises ``CheckpointError`` where a tensor is
    missing. Source: ``transformers/models/gpt2/modeling_gpt2.py``.
    """
    weights = read_weights(folder)
    fields = _config_fields(folder, config)
    return build_reference(fields, weights, dtype=dtype, weight_dtype=weight_dtype, where=folder)


def build_reference(
    fields: dict[str, Any],
    weights: dict[str, Tensor],
    *,
    dtype: torch.dtype = torch.float64,
    weight_dtype: torch.dtype | None = None,
    where: object = None,
) -> Any:
    """transformers' model of config.json's ``fields`` and ``weights`` under the released files' names."""
    import transformers
    from transformers.initialization import no_init_weights

    def cast(tensor: Tensor) -> Tensor:
        rounded = tensor if weight_dtype is None else tensor.to(weight_dtype)
        return rounded.to(dtype).contiguous()

    with _BUILDING, quiet_transformers():
        hf_config = transformers.GPT2Config(**{**fields, "attn_implementation": "eager"})
        hf_config.dtype = dtype
        if dtype == torch.float64:
            hf_config.reorder_and_upcast_attn = False  # its attention insists on float32
        with torch.device("meta"), no_init_weights():
            model = transformers.GPT2LMHeadModel(hf_config)
    wanted = {name.removeprefix("transformer."): name for name in model.state_dict()}
    head = "lm_head.weight"
    tied = bool(hf_config.tie_word_embeddings) and (head not in weights or "wte.weight" not in weights)
    found = dict(weights)
    if tied:
        shared = found.get("wte.weight", found.get(head))
        found |= {} if shared is None else {"wte.weight": shared, head: shared}
    missing = [name for name in wanted if name not in found]
    if missing:
        raise CheckpointError(
            f"{counted(len(missing), 'tensor is', 'tensors are')} missing, the first: {missing[0]}", where=where
        )
    state = {full: cast(found[name]) for name, full in wanted.items() if name != head}
    state[wanted[head]] = state[wanted["wte.weight"]] if tied else cast(found[head])
    _check_shapes(model, state, where)
    model.load_state_dict(state, strict=True, assign=True)
    return model.eval().requires_grad_(requires_grad=False)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """transformers logs errors only, while this lasts."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _check_shapes(model: Any, state: dict[str, Tensor], where: object) -> None:
    for name, parameter in model.state_dict().items():
        if state[name].shape != parameter.shape:
            raise CheckpointError(
                f"tensor {name} has the wrong shape",
                where=where,
                expected=list(parameter.shape),
                got=list(state[name].shape),
            )


def _config_fields(folder: Path, config: GPT2Config | None) -> dict[str, Any]:
    path = folder / "config.json"
    if path.is_file():
        fields: dict[str, Any] = parse_json(read_regular(path))
        for key in ("dtype", "torch_dtype", "transformers_version", "architectures", "model_type"):
            fields.pop(key, None)
        return fields
    if config is None:
        raise MissingFileError("config.json is not there", where=folder)
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The folder's tensors through the official safetensors library, named as in the released files."""
    import safetensors.torch

    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        shards = [single]
    elif index.is_file():
        names = parse_json(read_regular(index))["weight_map"].values()
        shards = [folder / name for name in sorted(set(names))]
    else:
        raise MissingFileError("there is neither model.safetensors nor an index of shards", where=folder)
    weights: dict[str, Tensor] = {}
    for shard in shards:
        weights |= safetensors.torch.load_file(shard)
    return {_released_name(name): tensor for name, tensor in weights.items()}


def _released_name(name: str) -> str:
    for _ in range(4):
        for wrapper in WRAPPERS:
            name = name.removeprefix(wrapper)
    return name.replace("._orig_mod.", ".")


def parameters_of(model: Any) -> dict[str, Tensor]:
    """The reference's parameters under the released files' names; the head is always among them."""
    return {name.removeprefix("transformer."): tensor for name, tensor in model.state_dict().items()}


Record = Callable[[str, Tensor], None]


def capture(
    model: Any,
    ids: Tensor,
    *,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    record: Record | None = None,
    key_order: KeyOrder = "forward",
    cache: Any = None,
) -> dict[str, Tensor]:
    """Every tap of one forward of transformers' model, by name, in order of computation.

    ``ids`` is [batch, pos]. ``record(name, value)`` is called for each tap as it is computed; by default the taps
    are kept and returned. ``key_order="backward"`` sums the attention over the keys last to first. With a ``cache``
    (from ``new_cache``) the ids go on where it ends, ``attention_mask`` covers all positions, and k and v are those
    of all positions.
    """
    taps: dict[str, Tensor] = {}
    keep = taps.__setitem__ if record is None else record
    if attention_mask is None and position_ids is not None and cache is None:
        # Positions that begin again would otherwise be taken for several texts in one row, which do not see each other.
        attention_mask = torch.ones_like(ids)
    with torch.inference_mode(), _tapped(model, keep, key_order, batch_positions=position_ids is not None):
        output = model(
            input_ids=ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            use_cache=cache is not None,
        )
    keep("logits", output.logits)  # [batch, pos, vocab]
    return taps


def new_cache(model: Any) -> Any:
    """transformers' own KV cache for one sequence of passes of ``model``, empty."""
    from transformers import DynamicCache

    return DynamicCache(config=model.config)


@contextmanager
def _tapped(model: Any, record: Record, key_order: KeyOrder, *, batch_positions: bool) -> Iterator[None]:
    """Hooks on every stage of ``model`` and the tapped attention in place of its own; all removed at the end."""
    from transformers.masking_utils import AttentionMaskInterface, eager_mask
    from transformers.modeling_utils import AttentionInterface

    before, name = model.config._attn_implementation, f"{ATTENTION}{next(_NUMBERS)}"
    handles: list[Any] = []
    try:
        AttentionInterface.register(name, _tapped_attention(record, key_order))
        AttentionMaskInterface.register(name, eager_mask)  # without it the mask would be dropped
        model.set_attn_implementation(name)
        handles += _hooks(model, record, batch_positions=batch_positions)
        yield
    finally:
        for handle in handles:
            handle.remove()
        model.set_attn_implementation(before)
        for registry in (AttentionInterface, AttentionMaskInterface):
            registry._global_mapping.pop(name, None)  # there is no public way to take a name back


def _hooks(model: Any, record: Record, *, batch_positions: bool) -> list[Any]:
    def after(module: Any, name: str) -> Any:
        return module.register_forward_hook(lambda _module, _inputs, output: record(name, output))

    def before(module: Any, name: str) -> Any:
        return module.register_forward_pre_hook(lambda _module, inputs: record(name, inputs[0]))

    def positions(_module: Any, _inputs: Any, output: Tensor) -> None:
        record("wpe", output if batch_positions else output[0])

    body = model.transformer
    handles = [after(body.wte, "wte"), body.wpe.register_forward_hook(positions), before(body.h[0], "embed")]
    for i, block in enumerate(body.h):
        handles += [
            after(block.ln_1, f"h.{i}.ln_1"),
            after(block.attn.c_proj, f"h.{i}.attn.out"),
            before(block.ln_2, f"h.{i}.resid_mid"),
            after(block.ln_2, f"h.{i}.ln_2"),
            after(block.mlp.c_fc, f"h.{i}.mlp.pre"),
            before(block.mlp.c_proj, f"h.{i}.mlp.post"),
            after(block.mlp.c_proj, f"h.{i}.mlp.out"),
            after(block, f"h.{i}.resid_post"),
        ]
    return [*handles, after(body.ln_f, "ln_f")]


def _tapped_attention(record: Record, key_order: KeyOrder) -> Callable[..., tuple[Tensor, Tensor]]:
    """Eager attention that records q, k, v, scores, pattern and z as it computes them."""

    def attention(
        module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float, **_: Any
    ) -> tuple[Tensor, Tensor]:
        at = f"h.{module.layer_idx}.attn"
        record(f"{at}.q", q)  # [batch, head, pos, head_dim]
        record(f"{at}.k", k)  # [batch, head, pos, head_dim]
        record(f"{at}.v", v)  # [batch, head, pos, head_dim]
        scores = torch.matmul(q, k.transpose(-1, -2)) * scaling  # [batch, head, pos_q, pos_k]
        record(f"{at}.scores", scores)
        masked = scores if mask is None else scores + mask  # [batch, head, pos_q, pos_k]
        if key_order == "backward":
            pattern = masked.flip(-1).softmax(dim=-1).flip(-1)  # [batch, head, pos_q, pos_k]
            z = torch.matmul(pattern.flip(-1), v.flip(-2))  # [batch, head, pos, head_dim]
        else:
            pattern = masked.softmax(dim=-1)  # [batch, head, pos_q, pos_k]
            z = torch.matmul(pattern, v)  # [batch, head, pos, head_dim]
        record(f"{at}.pattern", pattern)
        record(f"{at}.z", z)
        return z.transpose(1, 2), pattern  # [batch, pos, head, head_dim]

    return attention
