"""What is said of a candidate and may be wrong: positions, padding, ids, dtypes, the checkpoint itself."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from labkit.model.inputs import token_positions
from labkit.verification.budget import compared
from labkit.verification.hypotheses import Scene
from labkit.verification.padding import left_padding, padded_rows
from labkit.verification.precision import Precision, dtype_name, held_in, unit_roundoff
from labkit.verification.readings.reading import Reading, Stated, computed, given

NARROW = (torch.bfloat16, torch.float16)


def positions(scene: Scene, stated: Stated, _wrong: Sequence[str]) -> Iterator[Reading]:
    """Positions that count padding where they should not, or the other way round."""
    inputs = scene.inputs
    if inputs.attention_mask is None:
        yield from _unstated_mask(scene, stated)
    if not left_padding(inputs):
        return
    counts = token_positions(inputs.real)  # [batch, pos]
    plain = torch.arange(counts.shape[1]).expand_as(counts)  # [batch, pos]
    over = "write the position_ids [batch, pos] that your engine uses"
    if not stated.positions:
        yield Reading(
            name="positions-unstated",
            text="each row's positions count from 0 after its padding, and the trace states no position_ids",
            next_step=f"{over}: without them positions are taken as 0, 1, 2, … over the padding",
            scene=given(scene, replace(inputs, position_ids=counts)),
        )
    elif not torch.equal(torch.where(inputs.real, inputs.positions, 0), torch.where(inputs.real, plain, 0)):
        yield Reading(
            name="positions-ignore-padding",
            text="positions count padding on the left, against the position_ids that the trace states",
            next_step=f"take row p of wpe for a token with p tokens before it, padding left out; or {over}",
            scene=given(scene, replace(inputs, position_ids=plain)),
        )


def _unstated_mask(scene: Scene, stated: Stated) -> Iterator[Reading]:
    """Padding that the positions, or the pattern, show and no mask states."""
    inputs, pattern = scene.inputs, scene.candidate.get("h.0.attn.pattern")
    pos = inputs.ids.shape[1]
    if stated.positions:
        starts = (inputs.positions.expand_as(inputs.ids) == 0).long()  # [batch, pos]
        first = pos - 1 - starts.flip(-1).argmax(dim=-1)  # [batch]: the last position that is 0
    elif pattern is not None and pattern.dim() == 4 and pattern.shape[-1] == pos:
        seen = (pattern[:, :, -1] != 0).any(dim=1)  # [batch, pos_k], by the last query
        first = seen.long().argmax(dim=-1)  # [batch]: the first key
    else:
        return
    mask = (torch.arange(pos) >= first[:, None]).long()  # [batch, pos]
    whole = mask.all(dim=-1)  # [batch]
    if bool(whole.all()) or not bool(whole.any()):
        return  # no padding, or in every row, as no batch has it: an engine that leaves out the first keys
    padded = replace(inputs, attention_mask=mask)
    counts = token_positions(padded.real)
    for places in (inputs.position_ids,) if stated.positions else (counts, inputs.position_ids):
        also = ", and position_ids, since positions count the tokens only" if places is counts else ""
        yield Reading(
            name="mask-unstated",
            text=f"the values are those of padding before the tokens of {padded_rows(padded)}, "
            "and the trace states no attention_mask",
            next_step=f"write attention_mask [batch, pos], 0 where padding{also}",
            scene=given(scene, replace(padded, position_ids=places)),
        )


def rows(scene: Scene, stated: Stated, wrong: Sequence[str]) -> Iterator[Reading]:
    """Rows of a table that are those of other ids, or other positions, than stated."""
    for tap, what in (("wte", "ids"), ("wpe", "positions")):
        asked = scene.inputs.ids if tap == "wte" else scene.inputs.positions  # [batch, pos] or [pos]
        found = _found_rows(scene, tap, asked) if tap in wrong else None
        if found is None:
            continue
        at = next(iter((found != asked).nonzero().tolist()), None)
        if at is None:
            continue
        run = replace(scene.inputs, ids=found) if tap == "wte" else replace(scene.inputs, position_ids=found)
        place = tuple(at)
        yield Reading(
            name="other-ids" if tap == "wte" else "other-positions",
            text=f"{tap} holds the rows of other {what} than stated: at {at} that of {int(found[place])}, not {int(asked[place])}",
            next_step=f"write the {what} that your engine ran, or look at how it comes by them",
            scene=replace(scene, stages={**scene.stages, tap: given(scene, run).stages[tap]}),
        )


def _found_rows(scene: Scene, tap: str, asked: Tensor) -> Tensor | None:
    """The rows of the table that a tap holds, exactly and each; where padding is, those asked for."""
    value, table = scene.candidate[tap].double(), scene.weights[f"{tap}.weight"]
    if value.shape[:-1] != asked.shape or value.shape[-1] != table.shape[1]:
        return None
    flat, rows, real = value.flatten(0, -2), asked.flatten().clone(), scene.inputs.real.flatten()
    for place in range(len(flat)):
        if asked.dim() == 2 and not bool(real[place]):
            continue
        same = (table == flat[place]).all(dim=-1).nonzero()
        if not len(same):
            return None
        rows[place] = rows[place] if bool((same == rows[place]).any()) else same[0, 0]
    return rows.view(asked.shape)


def other_weights(scene: Scene, stated: Stated, wrong: Sequence[str]) -> Iterator[Reading]:
    """Every stage that reads weights is wrong, and every other is right."""
    reading = [tap for tap in scene.candidate if scene.stages[tap].tensors]
    if len(reading) > 2 and [*wrong] == reading:
        yield Reading(
            name="other-weights",
            text="every stage that reads weights differs, and every other is right: the weights are not this checkpoint's",
            next_step="give the checkpoint that the engine loaded, or look at how it loads them (and in which layout)",
            scene=scene,
            about=tuple(reading),
        )


def dtypes(scene: Scene, stated: Stated, _wrong: Sequence[str]) -> Iterator[Reading]:
    """Arithmetic of another dtype than declared where every value shows it, or else weights of another."""
    declared, told = scene.precision, stated.words
    for dtype in NARROW:
        if unit_roundoff(dtype) > unit_roundoff(declared.compute) and _held_by(dtype, scene):
            arithmetic = replace(Precision.of(dtype), accumulate=declared.accumulate)
            for weight in dict.fromkeys((dtype, declared.weight)):
                also = f" and weight_dtype {dtype_name(weight)}" if weight != declared.weight else ""
                yield Reading(
                    name="compute_dtype",
                    text=f"{told.declared.format(key='compute_dtype', value=dtype_name(declared.compute))}; "
                    f"its values are those of {dtype_name(dtype)}",
                    next_step=told.arithmetic.format(name=dtype_name(dtype), also=also),
                    scene=computed(scene, stated.standard, replace(arithmetic, weight=weight)),
                )
    for dtype in (torch.float32, *NARROW):
        if dtype != declared.weight:
            text, next_step = told.other_weights(declared.weight, dtype)
            other = computed(scene, stated.standard, replace(declared, weight=dtype))
            yield Reading(name="weight_dtype", text=text, next_step=next_step, scene=other)


def _held_by(dtype: torch.dtype, scene: Scene) -> bool:
    """Whether every recorded value that was computed is one that ``dtype`` holds: only arithmetic in it gives that."""
    taps = [tap for tap in scene.stages if tap in scene.candidate and scene.stages[tap].inputs]
    return bool(taps) and all(_all_held(tap, dtype, scene) for tap in taps)


def _all_held(tap: str, dtype: torch.dtype, scene: Scene) -> bool:
    value = scene.candidate[tap]
    return bool((held_in(value, dtype) | ~compared(tap, scene.inputs).expand(value.shape)).all())
