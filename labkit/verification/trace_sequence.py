"""A trace's forward passes, the prompt's and the decode steps', as the one sequence that they computed.

Keys and values come from the step that computed them, rows of scores and pattern are padded to the last step's keys.
A stale cache entry therefore shows where it was used: the scores of a step are not those of the keys that were
computed. The packed c_attn output and the merged heads stand in for q, k, v and z where those were not recorded.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from labkit.config import GPT2Config
from labkit.errors import TraceError
from labkit.model.taps import tap_names
from labkit.storage import Entry
from labkit.verification.chain import Inputs
from labkit.verification.trace import Trace
from labkit.verification.trace_layout import shape_advice
from labkit.verification.trace_names import (
    INPUT_NAMES,
    Sizes,
    allowed_shapes,
    ordered_taps,
    split_block,
    split_step,
    step_prefix,
)

FLOATS = ("F64", "F32", "BF16", "F16")
"""Dtype codes that a tap may be stored in."""


@dataclass(frozen=True)
class Pass:
    """One forward pass: the names of its tensors, what it was given, and how many positions came before."""

    step: int | None
    inputs: Inputs
    sizes: Sizes

    @property
    def prefix(self) -> str:
        """What its tensors' names begin with."""
        return step_prefix(self.step)


def passes_of(trace: Trace) -> tuple[Pass, ...]:
    """The forward passes of a trace in order, their inputs checked; raises ``TraceError``."""
    passes: list[Pass] = []
    past = 0
    _check_steps(trace)
    for step in trace.steps or (None,):  # without any tensor, the ids are missing
        inputs = trace.inputs(step)
        batch, pos = inputs.ids.shape
        if passes and batch != passes[0].sizes.batch:
            raise TraceError(
                "a decode step has another number of rows than the prompt",
                where=f"{trace.path}, {step_prefix(step)}input_ids",
                expected=passes[0].sizes.batch,
                got=batch,
            )
        sizes = Sizes(batch=batch, pos=pos, past=past)
        passes.append(Pass(step, _checked(trace, inputs, sizes, step_prefix(step)), sizes))
        past += pos
    _check_length(trace, past)
    _check_rows(trace, tuple(passes))
    return tuple(passes)


def _check_rows(trace: Trace, passes: tuple[Pass, ...]) -> None:
    """Every row must have a position that is no padding."""
    mask = joined_inputs(passes).attention_mask
    if mask is not None and not bool((mask == 1).any(dim=1).all()):
        row = int((mask == 0).all(dim=1).nonzero()[0, 0])
        raise TraceError(
            "a row is padding throughout",
            where=f"{trace.path}, attention_mask",
            got=f"no 1 in row {row}",
            fix="write 1 for each token of the prompt, 0 for padding",
        )


def _check_steps(trace: Trace) -> None:
    numbers = [step for step in trace.steps if step is not None]
    for expected, number in enumerate(numbers):
        if number != expected:
            raise TraceError(
                f"decode step {expected} is missing", where=trace.path, got=f"step {number}", fix="count steps from 0"
            )


def _check_length(trace: Trace, positions: int) -> None:
    if positions > trace.config.n_positions:
        raise TraceError(
            "the trace is longer than the model's context",
            where=trace.path,
            expected=f"at most n_positions = {trace.config.n_positions}",
            got=positions,
        )


def _checked(trace: Trace, inputs: Inputs, sizes: Sizes, prefix: str) -> Inputs:
    """The inputs of one pass with mask and positions as [batch, pos] of its own positions."""
    batch, pos, every = sizes.batch, sizes.pos, sizes.past + sizes.pos
    mask, positions = inputs.attention_mask, inputs.position_ids
    if mask is not None:
        if tuple(mask.shape) not in ((batch, pos), (batch, every)):
            raise _wrong_shape(trace, f"{prefix}attention_mask", mask, [batch, pos])
        if not bool(((mask == 0) | (mask == 1)).all()):
            raise TraceError("not a mask of 0 (padding) and 1", where=f"{trace.path}, {prefix}attention_mask")
        mask = mask[:, -pos:]  # [batch, pos]
    if positions is not None:
        if tuple(positions.shape) not in ((batch, pos), (1, pos), (pos,)):
            raise _wrong_shape(trace, f"{prefix}position_ids", positions, [batch, pos])
        size = trace.config.n_positions
        if int(positions.min()) < 0 or int(positions.max()) >= size:
            raise TraceError(
                "a position is beyond wpe's table",
                where=f"{trace.path}, {prefix}position_ids",
                expected=f"0 to {size - 1}",
                got=f"{int(positions.min())} to {int(positions.max())}",
            )
        positions = positions.expand(batch, pos)  # [batch, pos]
    return Inputs(inputs.ids, mask, positions)


def _wrong_shape(trace: Trace, name: str, tensor: Tensor, expected: list[int]) -> TraceError:
    return TraceError(
        "the shape is wrong", where=f"{trace.path}, {name}", expected=f"{expected}", got=f"{list(tensor.shape)}"
    )


def joined_inputs(passes: tuple[Pass, ...], *, wpe_by_row: bool = False) -> Inputs:
    """The inputs of the whole sequence; positions that no pass states go on from those before.

    Where a mask or positions are stated, or ``wpe_by_row`` says that wpe was recorded row by row, all positions are
    spelled out, [batch, pos].
    """
    ids = torch.cat([each.inputs.ids for each in passes], dim=1)  # [batch, pos]
    masks = [each.inputs.attention_mask for each in passes]
    stated = [each.inputs.position_ids for each in passes]
    mask = None
    if any(each is not None for each in masks):
        parts = [
            torch.ones_like(each.inputs.ids) if part is None else part for each, part in zip(passes, masks, strict=True)
        ]
        mask = torch.cat(parts, dim=1)  # [batch, pos]
    if mask is None and not wpe_by_row and all(each is None for each in stated):
        return Inputs(ids)
    return Inputs(ids, mask, _joined_positions(passes, stated))


def _joined_positions(passes: tuple[Pass, ...], stated: list[Tensor | None]) -> Tensor:
    parts: list[Tensor] = []
    for each, given in zip(passes, stated, strict=True):
        start = parts[-1][:, -1:] + 1 if parts else torch.zeros_like(each.inputs.ids[:, :1])  # [batch, 1]
        parts.append(start + torch.arange(each.sizes.pos) if given is None else given)  # [batch, pos]
    return torch.cat(parts, dim=1)  # [batch, pos]


class TraceSequence(Mapping[str, Tensor]):
    """Tap -> value over the whole sequence, for the taps that every pass recorded; read when asked for.

    Raises ``TraceError`` where a tap's shape or dtype cannot be used.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._passes = passes_of(trace)
        taps = [self._taps_in(each) for each in self._passes]
        self._names = tuple(tap for tap in tap_names(trace.config) if all(tap in each for each in taps))
        self.partly = tuple(tap for tap in tap_names(trace.config) if tap not in self and any(tap in t for t in taps))
        """Taps that some passes recorded and others did not."""
        for each in self._passes:
            self._check(each)
        by_row = "wpe" in self and any(len(trace.entry(each.prefix + "wpe").shape) == 3 for each in self._passes)
        self.inputs = joined_inputs(self._passes, wpe_by_row=by_row)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Tensors that are neither inputs nor taps."""
        known = {*INPUT_NAMES, *ordered_taps(self._trace.config)}
        return tuple(name for name in self._trace if split_step(name)[1] not in known)

    @property
    def step_count(self) -> int:
        """Decode steps after the first pass."""
        return len(self._passes) - 1

    @property
    def prompt_length(self) -> int:
        """Positions of the first pass."""
        return self._passes[0].sizes.pos

    @property
    def states_positions(self) -> bool:
        """Whether any pass was written with its position_ids."""
        return any(each.inputs.position_ids is not None for each in self._passes)

    def by_pass(self, tap: str) -> tuple[Tensor, ...]:
        """What each pass recorded for a tap, in order."""
        return tuple(self._value(each, tap) for each in self._passes)

    def stale_cache(self) -> tuple[str, ...]:
        """Steps whose recorded keys or values of earlier positions are not those that were computed, a line each."""
        lines = []
        for tap in (name for name in self._names if name.endswith((".attn.k", ".attn.v"))):
            for each in self._passes:
                if each.sizes.past and (self._value(each, tap).shape[2] > each.sizes.pos):
                    earlier = self._value(each, tap)[:, :, : each.sizes.past]  # [batch, head, past, head_dim]
                    off = (earlier != self[tap][:, :, : each.sizes.past]).any(dim=-1).nonzero()  # [n, 3]
                    if len(off):
                        at = int(off[0, 2])
                        lines.append(f"{each.prefix}{tap} holds another value at position {at} than was computed there")
        return tuple(lines)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        parts = [self._own_rows(each, name, self._value(each, name)) for each in self._passes]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2 if name != "wpe" else parts[0].dim() - 2)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _own_rows(self, each: Pass, tap: str, value: Tensor) -> Tensor:
        total = self.inputs.ids.shape[1]
        if tap.endswith((".attn.scores", ".attn.pattern")):
            return functional.pad(value, (0, total - value.shape[-1]))  # [batch, head, pos_q, pos_k]
        if tap == "wpe" and self.inputs.position_ids is not None:
            return value.expand(each.sizes.batch, *value.shape[-2:])  # [batch, pos, n_embd]
        return value[:, :, -each.sizes.pos :] if tap.endswith((".attn.k", ".attn.v")) else value

    def _taps_in(self, each: Pass) -> set[str]:
        """Every tap that the pass recorded, by itself or packed."""
        found = {name for name in self._trace if split_step(name)[0] == each.step}
        within = {split_step(name)[1] for name in found}
        for i in range(self._trace.config.n_layer):
            if f"h.{i}.attn.c_attn" in within:
                within |= {f"h.{i}.attn.{letter}" for letter in "qkv"}
            if f"h.{i}.attn.merged" in within:
                within.add(f"h.{i}.attn.z")
        return within

    def _value(self, each: Pass, tap: str) -> Tensor:
        if each.prefix + tap in self._trace:
            return self._trace[each.prefix + tap]
        block, stage = split_block(tap)
        heads = self._trace.config.n_head
        if stage == "attn.z":
            return _split(self._trace[f"{each.prefix}{block}attn.merged"], heads)
        packed = self._trace[f"{each.prefix}{block}attn.c_attn"]  # [batch, pos, 3 * n_embd]
        return _split(packed.chunk(3, dim=-1)["qkv".index(stage[-1])], heads)

    def _check(self, each: Pass) -> None:
        known = set(ordered_taps(self._trace.config))
        for name in self._trace:
            step, tap = split_step(name)
            if step != each.step or tap not in known:
                continue
            entry, shapes = self._trace.entry(name), allowed_shapes(tap, self._trace.config, each.sizes)
            if entry.shape not in shapes:
                raise shape_error(self._trace, name, tap, entry.shape, shapes)
            require_float(self._trace, entry)


def require_float(trace: Trace, entry: Entry) -> None:
    """Raise ``TraceError`` for a tap of a dtype that no tap may have."""
    if entry.dtype not in FLOATS:
        raise TraceError(
            "a tap must be floating-point",
            where=f"{trace.path}, {entry.name}",
            expected=", ".join(FLOATS),
            got=entry.dtype,
        )


def shape_error(
    trace: Trace, name: str, tap: str, got: tuple[int, ...], allowed: tuple[tuple[int, ...], ...]
) -> TraceError:
    """The error for a tap of the wrong shape, with the rearrangement that would right it."""
    return TraceError(
        "the shape is wrong",
        where=f"{trace.path}, {name}",
        expected=" or ".join(str(list(shape)) for shape in allowed),
        got=list(got),
        fix=shape_advice(tap, got, allowed),
    )


def _split(value: Tensor, heads: int) -> Tensor:
    return value.reshape(*value.shape[:-1], heads, -1).transpose(1, 2)  # [batch, head, pos, head_dim]


def config_differences(stated: GPT2Config, checkpoint: GPT2Config) -> tuple[str, ...]:
    """Fields in which a trace's config differs from the checkpoint's, a line each.

    >>> config_differences(GPT2Config(n_layer=2), GPT2Config(n_layer=2, layer_norm_epsilon=1e-6))
    ('layer_norm_epsilon is 1e-05 in the trace and 1e-06 in the checkpoint',)
    """
    names = stated.__dataclass_fields__
    pairs = [(name, getattr(stated, name), getattr(checkpoint, name)) for name in names if name != "n_inner"]
    pairs.append(("n_inner", stated.inner, checkpoint.inner))
    return tuple(f"{name} is {a!r} in the trace and {b!r} in the checkpoint" for name, a, b in pairs if a != b)
