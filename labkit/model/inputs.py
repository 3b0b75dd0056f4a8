"""Ids, mask and positions of one forward pass -> checked tensors, before any table is looked up.

Nothing indexes out of range: an id beyond the vocabulary or a position beyond ``n_positions`` is refused here by name.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.config import GPT2Config
from labkit.errors import ArgumentError, ArgumentTypeError, OutOfRangeError
from labkit.model.forward import Cache, FusedMask, Inputs
from labkit.outside import refuse_bytes

Ids = Tensor | Sequence[int] | Sequence[Sequence[int]]
"""Token ids [batch, pos], or [pos] for a single row."""


def check_inputs(
    config: GPT2Config,
    device: torch.device,
    ids: Ids,
    *,
    attention_mask: Tensor | Sequence[Sequence[int]] | None = None,
    position_ids: Tensor | Sequence[Sequence[int]] | None = None,
    cache: Cache | None = None,
    last_only: bool = False,
) -> Inputs:
    """The checked inputs; raises ``OutOfRangeError``, ``ArgumentError`` or ``ArgumentTypeError`` by name.

    >>> check_inputs(GPT2Config(), torch.device("cpu"), [1, 50257])
    Traceback (most recent call last):
    labkit.errors.OutOfRangeError: ids[0, 1]: the id is beyond the vocabulary (expected 0 to 50256, got 50257); ...
    """
    rows = _whole(ids, "ids").to(device)
    rows = rows[None] if rows.dim() == 1 else rows  # [batch, pos]
    if rows.dim() != 2 or rows.numel() == 0:
        raise ArgumentError(
            "not a batch of prompts", where="ids", expected="[batch, pos], each at least 1", got=list(rows.shape)
        )
    fix = "encode the text with this checkpoint's own tokenizer"
    _check_range(rows, config.vocab_size, "ids", "the id is beyond the vocabulary", fix)
    batch, pos = rows.shape
    past = cache.length if cache is not None else 0
    real = None if attention_mask is None else _mask(attention_mask, batch, past + pos, device)
    positions = _positions(position_ids, real, batch, pos, past, device)
    fix = f"the model holds n_positions = {config.n_positions} positions; shorten the prompt"
    _check_range(positions, config.n_positions, "position_ids", "the position is beyond wpe's table", fix)
    return Inputs(
        ids=rows,
        positions=positions,
        visible=visible_keys(pos, past, real, device),
        fused_mask=_fused_mask(pos, past, real),
        last_only=last_only,
        cache=cache,
    )


def visible_keys(pos: int, past: int, real: Tensor | None, device: torch.device) -> Tensor:
    """Which key each query may look at: itself and what came before it, without padding.

    A query that is padding itself still sees itself, so that its softmax has a finite sum.

    >>> visible_keys(2, 1, None, torch.device("cpu")).int().tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    causal = torch.ones(pos, past + pos, dtype=torch.bool, device=device).tril(past)  # [pos_q, pos_k]
    if real is None:
        return causal
    itself = causal & ~causal.tril(past - 1)  # [pos_q, pos_k]
    return (causal & real[:, None, None, :]) | itself  # [batch, 1, pos_q, pos_k]


def _fused_mask(pos: int, past: int, real: Tensor | None) -> FusedMask:
    if real is not None:
        return "given"
    return "none" if pos == 1 else "causal" if past == 0 else "given"  # one query sees every key before it


def _rows(values: Any) -> Sequence[Any]:
    return values if isinstance(values, list | tuple) else ()


def _whole(values: Any, where: str) -> Tensor:
    refuse_bytes(values, *_rows(values), where=where)
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError(
            "not a table of whole numbers", where=where, expected="rows of equal length", got=str(error).split("\n")[0]
        ) from error
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        if tensor.numel():
            raise ArgumentTypeError("not whole numbers", where=where, expected="integers", got=str(tensor.dtype))
        tensor = tensor.long()
    return tensor if tensor.dtype == torch.int32 else tensor.long()


def _check_range(values: Tensor, size: int, where: str, what: str, fix: str) -> None:
    if int(values.min()) >= 0 and int(values.max()) < size:
        return
    first = ((values < 0) | (values >= size)).nonzero()[0]
    index = tuple(int(i) for i in first)
    raise OutOfRangeError(
        what,
        where=f"{where}[{', '.join(map(str, index))}]",
        expected=f"0 to {size - 1}",
        got=int(values[index]),
        fix=fix,
    )


def _mask(attention_mask: Any, batch: int, keys: int, device: torch.device) -> Tensor:
    refuse_bytes(attention_mask, *_rows(attention_mask), where="attention_mask")
    mask = torch.as_tensor(attention_mask, device=device)
    if tuple(mask.shape) != (batch, keys):
        raise ArgumentError("the shape is wrong", where="attention_mask", expected=[batch, keys], got=list(mask.shape))
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise ArgumentError(
            "not a mask of 0 (padding) and 1", where="attention_mask", got=sorted(set(mask.flatten().tolist()))[:4]
        )
    return mask.bool()  # [batch, pos_k]


def _positions(given: Any, real: Tensor | None, batch: int, pos: int, past: int, device: torch.device) -> Tensor:
    if given is not None:
        positions = _whole(given, "position_ids").to(device)
        if tuple(positions.shape) not in ((pos,), (1, pos), (batch, pos)):
            raise ArgumentError(
                "the shape is wrong", where="position_ids", expected=[batch, pos], got=list(positions.shape)
            )
        return positions  # [pos] or [batch, pos]
    if real is None:
        return torch.arange(past, past + pos, device=device)  # [pos]
    return token_positions(real)[:, past:]  # [batch, pos]


def token_positions(real: Tensor) -> Tensor:
    """Positions that count the tokens before and leave padding out: [batch, pos], for a mask of the same shape.

    >>> token_positions(torch.tensor([[1, 1, 1], [0, 0, 1]])).tolist()
    [[0, 1, 2], [0, 0, 0]]
    """
    return (real.long().cumsum(-1) - 1).clamp(min=0)
