"""What the checks may run: ids -> taps, for labkit's model, for a user's function, with whatever else it offers."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from labkit.config import GPT2Config
from labkit.errors import ArgumentError, ArgumentTypeError
from labkit.generation.cache import KVCache
from labkit.model import GPT2
from labkit.model.taps import tap_axes
from labkit.verification.precision import DTYPES
from labkit.verification.trace_names import Sizes, allowed_shapes

Taps = Mapping[str, Tensor]
"""Tap -> value; a callable has ``logits`` only."""

Logits = Callable[[Tensor], Tensor]
"""ids [batch, pos] -> logits [batch, pos, vocab]."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine under test; what it does not offer is None."""

    run: Callable[[Tensor], Taps]
    """ids [batch, pos] -> taps."""
    masked: Callable[[Tensor, Tensor], Taps] | None = None
    """ids and attention mask, both [batch, pos] -> taps."""
    cached: Callable[[Tensor], Taps] | None = None
    """ids [batch, pos], taken one position at a time with a KV cache -> taps of all positions."""


def model_engine(model: GPT2) -> Engine:
    """labkit's model with every tap that has its config's shape, with padding and with its KV cache."""

    def run(ids: Tensor, mask: Tensor | None = None, cache: KVCache | None = None) -> Taps:
        given = None if mask is None else mask.to(model.device)
        taps = model.run(ids.to(model.device), taps="all", attention_mask=given, cache=cache).taps
        return _well_shaped(taps, model.config, ids.shape, past=0 if cache is None else cache.length - ids.shape[1])

    def cached(ids: Tensor) -> Taps:
        batch, pos = ids.shape
        cache = KVCache(model.config, capacity=pos, batch=batch, dtype=model.dtype, device=model.device)
        steps = [run(column, cache=cache) for column in torch.split(ids, 1, dim=1)]
        return {name: _joined(name, [step[name] for step in steps], pos) for name in steps[-1]}

    return Engine(run=run, masked=run, cached=cached)


def _well_shaped(taps: Taps, config: GPT2Config, shape: torch.Size, *, past: int) -> dict[str, Tensor]:
    """On the CPU, without the taps that a fault gave another shape: no two runs could be compared there."""
    sizes = Sizes(batch=shape[0], pos=shape[1], past=past)
    return {
        name: value.cpu() for name, value in taps.items() if tuple(value.shape) in allowed_shapes(name, config, sizes)
    }


def callable_engine(
    function: Logits,
    *,
    masked: Callable[[Tensor, Tensor], Tensor] | None = None,
    cached: Logits | None = None,
) -> Engine:
    """A user's function ids -> logits; ``masked(ids, attention_mask)`` and ``cached(ids)`` where there are such."""
    return Engine(
        run=lambda ids: {"logits": check_logits(function(ids.clone()), ids, "the callable")},
        masked=None
        if masked is None
        else lambda ids, mask: {"logits": check_logits(masked(ids.clone(), mask.clone()), ids, "masked")},
        cached=None if cached is None else lambda ids: {"logits": check_logits(cached(ids.clone()), ids, "cached")},
    )


def check_logits(value: object, ids: Tensor, where: str) -> Tensor:
    """What a callable returned, as a tensor on the CPU; raises where it is no [batch, pos, vocab].

    >>> list(check_logits(torch.zeros(1, 3, 7), torch.tensor([[1, 2, 3]]), "mine").shape)
    [1, 3, 7]
    """
    try:
        logits = torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError(
            "not logits", where=where, expected="a tensor [batch, pos, vocab]", got=type(value).__name__
        ) from error
    if logits.layout != torch.strided or logits.dtype not in DTYPES.values():
        known = f"a dense tensor of {', '.join(DTYPES)}"
        raise ArgumentTypeError("not logits", where=where, expected=known, got=f"{logits.layout} of {logits.dtype}")
    logits = logits.cpu()
    batch, pos = ids.shape
    if logits.dim() != 3 or tuple(logits.shape[:2]) != (batch, pos):
        raise ArgumentError(
            "not logits of every position",
            where=where,
            expected=f"floating-point [{batch}, {pos}, vocab]",
            got=f"{logits.dtype} {list(logits.shape)}",
            fix="return them for all positions, not the last alone",
        )
    return logits.clone()


def _joined(tap: str, parts: list[Tensor], pos: int) -> Tensor:
    """The values of single positions as the value of all; keys that were still to come are filled with zeros."""
    axes = _axes(tap, parts[0])
    if axes[-1] == "pos_k":
        parts = [functional.pad(part, (0, pos - part.shape[-1])) for part in parts]  # each [batch, head, 1, pos_k]
    return torch.cat(parts, dim=axes.index("pos_q" if "pos_q" in axes else "pos"))


def _axes(tap: str, value: Tensor) -> tuple[str, ...]:
    axes = tap_axes(tap)
    return ("batch", *axes) if value.dim() > len(axes) else axes


def row_of(taps: Taps, row: int, names: Iterable[str] | None = None) -> dict[str, Tensor]:
    """One row's taps, each with a batch axis of one."""
    return {
        name: taps[name][row : row + 1] if _axes(name, taps[name])[0] == "batch" else taps[name][None]
        for name in (taps if names is None else names)
    }


def cut(taps: Taps, start: int, stop: int) -> dict[str, Tensor]:
    """The part of each tap that is about some positions, as queries and as keys; scores of the future are zero."""
    return {name: _between(name, value, start, stop) for name, value in taps.items()}


def _between(tap: str, value: Tensor, start: int, stop: int) -> Tensor:
    for axis, name in enumerate(_axes(tap, value)):
        if name in ("pos", "pos_q", "pos_k"):
            value = value.narrow(axis, start, stop - start)
    return value.tril() if tap.endswith(".attn.scores") else value
