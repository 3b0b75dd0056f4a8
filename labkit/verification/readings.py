"""A judged candidate -> findings that lie in what is said of it, or in how it was recorded, told as such.

An engine may be right and its trace not: weights or arithmetic of another dtype than declared, positions that were not
stated, a buffer recorded twice or never, axes in another order. Each such *reading* is tried on the stages that differ
by themselves. It is taken where it brings some of them within rounding and no other stage out of it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from labkit.config import GPT2Config
from labkit.verification.budget import compared, share_of, storage_uncertainty
from labkit.verification.chain import Inputs, build_chain, recorded_inputs
from labkit.verification.finding import Finding
from labkit.verification.hypotheses import Scene, site_taps
from labkit.verification.lint_layout import fitting_layout, written_otherwise
from labkit.verification.precision import DTYPES, Precision, unit_roundoff
from labkit.verification.reference import load_reference, parameters_of
from labkit.verification.standard import Case
from labkit.verification.verdict import expect_locally
from labkit.words import listed

MOST_NUMEL = 1 << 23
"""Elements of a tap up to which it is tried (64 MiB in float64); a larger one goes with the others."""
READINGS = (
    "mask-unstated",
    "other-ids",
    "other-positions",
    "other-weights",
    "recorded-elsewhere",
    "positions-unstated",
    "positions-ignore-padding",
    "weight_dtype",
    "compute_dtype",
    "recorded-twice",
    "one-buffer",
    "never-written",
    "recorded-once",
    "axes-reordered",
)
"""Every reading by its name, which a finding has as its cause."""
_SHOWN = 8
"""Rows listed in one note."""
NARROW = (torch.bfloat16, torch.float16)
TABLES = ("wte", "wpe")
"""Taps whose values are the weights', whatever the arithmetic."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One way to read a trace other than it asks to be read: what it would mean, and what to do then."""

    name: str
    text: str
    next_step: str
    scene: Scene
    """The operations, inputs, precision and recorded values as they would then be."""
    about: tuple[str, ...] = ()
    """Taps that the scene leaves out, because what was recorded under their names is not they."""


@dataclass(frozen=True, kw_only=True)
class Words:
    """How to speak of a candidate, a trace or an engine that was run: templates of what is told, and of what to do."""

    declared: str
    weights: str
    arithmetic: str
    copied: str
    uncopy: str
    empty: str
    fill: str
    back: str
    elsewhere: str


OF_A_TRACE = Words(
    declared="the trace declares {key} {value}",
    weights="write weight_dtype {name}, or hold the weights in {was}",
    arithmetic="write compute_dtype {name}{also}, or record the values before they are rounded",
    copied="recorded twice?",
    uncopy="copy each buffer when its stage is computed, before the next one overwrites it",
    empty="never written?",
    fill="copy the buffer out after the stage is computed",
    back="before recording",
    elsewhere="record {tap} where its stage has been computed, before anything more is done to it",
)
OF_AN_ENGINE = Words(
    declared="it was judged as an engine of {key} {value}",
    weights="load the checkpoint's weights in {was}, not by way of {name}",
    arithmetic='give dtype="{name}", if it is to compute in that',
    copied="one module for both?",
    uncopy="name the module of each in the name map",
    empty="is that its module?",
    fill="name the module that gives it in the name map",
    back="in the rule's layout",
    elsewhere="look at which module the name map has for {tap}, and at its side",
)


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What a trace says of itself that may be wrong."""

    folder: Path
    config: GPT2Config
    words: "Words"
    positions: bool
    """Whether it states position_ids."""
    passes: Callable[[str], Sequence[Tensor]]
    """A tap -> its value in each forward pass."""
    judge: Callable[[Precision], Case]
    """The whole trace judged in another precision."""


def read_again(case: Case, scene: Scene, stated: Stated) -> Case:
    """The case with the findings that a reading explains told as one, where some finding is without a cause."""
    usable = [stage.name for stage in case.stages if stage.cause != "shape"]
    scene = replace(scene, candidate={name: scene.candidate[name] for name in usable})
    if not case.findings:
        return _as_a_whole(case, scene, stated)
    if all(finding.kind in ("named", "shape", "non-finite") for finding in case.findings):
        return case
    findings = list(case.findings)
    wrong = [stage.name for stage in case.stages if stage.cause == "local"]
    with torch.inference_mode():
        for readings in (_positions, _rows, _dtypes, _other_weights, *[_recordings] * len(wrong)):
            for reading in readings(scene, stated, wrong):
                explained = _explained(reading, scene, wrong)
                told = [each for each in findings if _belongs(each, wrong, explained)]
                if told:
                    findings[findings.index(told[0])] = _finding(reading, told[0], explained)
                    findings = [each for each in findings if each not in told]
                    wrong, scene = [tap for tap in wrong if tap not in explained], reading.scene
                    break
            else:
                if readings is _recordings:
                    break  # none of them explains anything more
    return replace(case, findings=tuple(findings))


def _as_a_whole(case: Case, scene: Scene, stated: Stated) -> Case:
    """Where no operation is wrong by itself and the whole strays all the same: a dtype in which it does not.

    Values that were stored narrower than computed hide in each operation what adds up along the chain.
    """
    first = next((stage for stage in case.stages if stage.verdict == "differs"), None)
    if first is None:
        return case
    for reading in _dtypes(scene, stated, ()):
        other = stated.judge(reading.scene.precision)
        if not other.controls.failures and all(stage.verdict == "same" for stage in other.stages):
            finding = Finding(
                where=first.name,
                span=tuple(stage.name for stage in case.stages if stage.verdict == "differs"),
                kind="named",
                cause=reading.name,
                home=first.name,
                candidates=(reading.name,),
                text=f"{reading.text} [{reading.name}]",
                error_right=first.local_error,
                error_replayed=None,
                share_right=first.local_used,
                share_replayed=None,
                tensors=(),
                next_step=reading.next_step,
            )
            return replace(case, findings=(finding,))
    return case


def _belongs(finding: Finding, wrong: Sequence[str], explained: Sequence[str]) -> bool:
    """Whether all that differs at a finding's site is explained."""
    site = [tap for tap in site_taps(finding.where) if tap in wrong]
    return finding.kind in ("unknown", "tie", "named") and bool(site) and all(tap in explained for tap in site)


def _explained(reading: Reading, scene: Scene, wrong: Sequence[str]) -> list[str]:
    """The stages that a reading brings within rounding; none where it brings another out of it."""
    explained = [tap for tap in wrong if tap in reading.about or _share(reading.scene, tap) <= 1]
    if not explained:
        return []
    right = [tap for tap in reading.scene.candidate if tap not in wrong and _touched(reading, scene, tap)]
    return [] if any(_share(reading.scene, tap) > 1 for tap in right) else explained


def _touched(reading: Reading, scene: Scene, tap: str) -> bool:
    """Whether a recorded stage is judged otherwise than before."""
    other = reading.scene
    if other.stages is not scene.stages or other.precision != scene.precision:
        return True
    sources = recorded_inputs(scene.stages[tap], scene.stages, set(scene.candidate))
    return any(other.candidate.get(name) is not scene.candidate[name] for name in (tap, *sources))


def _share(scene: Scene, tap: str) -> float:
    """The largest error of an operation on the recorded inputs, over its budget; 0 of a tap too large to be tried."""
    actual = scene.candidate[tap]
    if actual.numel() > MOST_NUMEL:
        return 0.0
    expected = expect_locally(scene.stages[tap], scene.stages, scene.candidate, scene.precision)
    if expected.output.shape != actual.shape:
        return float("inf")
    budget = expected.budget + storage_uncertainty(expected.output, actual.dtype, scene.precision)
    error = (actual.double() - expected.output).abs()
    return float(share_of(error, budget, compared(tap, scene.inputs)).max())


def _finding(reading: Reading, first: Finding, explained: Sequence[str]) -> Finding:
    """One finding in place of those it explains, where the first of them stood."""
    others = [tap for tap in explained if tap != first.where]
    more = f" (so {listed(others, most=3)} {'differs' if len(others) == 1 else 'differ'} too)" if others else ""
    return replace(
        first,
        span=tuple(explained),
        kind="named",
        cause=reading.name,
        home=first.where,
        candidates=(reading.name,),
        text=f"{reading.text}{more} [{reading.name}]",
        error_replayed=None,
        share_replayed=None,
        tensors=(),
        next_step=reading.next_step,
    )


def _positions(scene: Scene, stated: Stated, _wrong: Sequence[str]) -> Iterator[Reading]:
    """Positions that count padding where they should not, or the other way round."""
    inputs = scene.inputs
    if inputs.attention_mask is None:
        yield from _unstated_mask(scene, stated)
    if not left_padding(inputs):
        return
    counts = positions_of_tokens(inputs)  # [batch, pos]
    plain = torch.arange(counts.shape[1]).expand_as(counts)  # [batch, pos]
    over = "write the position_ids [batch, pos] that your engine uses"
    if not stated.positions:
        yield Reading(
            name="positions-unstated",
            text="each row's positions count from 0 after its padding, and the trace states no position_ids",
            next_step=f"{over}: without them positions are taken as 0, 1, 2, … over the padding",
            scene=_with_positions(scene, counts),
        )
    elif not torch.equal(torch.where(inputs.real, inputs.positions, 0), torch.where(inputs.real, plain, 0)):
        yield Reading(
            name="positions-ignore-padding",
            text="positions count padding on the left, against the position_ids that the trace states",
            next_step=f"take row p of wpe for a token with p tokens before it, padding left out; or {over}",
            scene=_with_positions(scene, plain),
        )


def _unstated_mask(scene: Scene, stated: Stated) -> Iterator[Reading]:
    """Padding that the positions, or the pattern, show and no mask states."""
    inputs, pattern = scene.inputs, scene.candidate.get("h.0.attn.pattern")
    pos = inputs.ids.shape[1]
    if stated.positions:
        starts = (inputs.positions.expand_as(inputs.ids) == 0).long()  # [batch, pos]
        first = pos - 1 - starts.flip(-1).argmax(dim=-1)  # [batch]: the last position that is 0
    elif pattern is not None and pattern.dim() == 4 and pattern.shape[-1] == pos:
        first = (
            (pattern[:, :, -1] != 0).any(dim=1).long().argmax(dim=-1)
        )  # [batch]: the first key that the last query sees
    else:
        return
    mask = (torch.arange(pos) >= first[:, None]).long()  # [batch, pos]
    whole = mask.all(dim=-1)  # [batch]
    if bool(whole.all()) or not bool(whole.any()):
        return  # no padding, or in every row, as no batch has it: an engine that leaves out the first keys
    padded = replace(inputs, attention_mask=mask)
    rows = listed((str(row) for row in left_padding(padded)), most=_SHOWN)
    counts = positions_of_tokens(padded)
    for positions in (inputs.position_ids,) if stated.positions else (counts, inputs.position_ids):
        also = ", and position_ids, since positions count the tokens only" if positions is counts else ""
        given = replace(padded, position_ids=positions)
        yield Reading(
            name="mask-unstated",
            text=f"the values are those of padding before the tokens of row {rows}, and the trace states no attention_mask",
            next_step=f"write attention_mask [batch, pos], 0 where padding{also}",
            scene=replace(scene, inputs=given, stages=build_chain(scene.config, scene.weights, given)),
        )


def _rows(scene: Scene, stated: Stated, wrong: Sequence[str]) -> Iterator[Reading]:
    """Rows of a table that are those of other ids, or other positions, than stated."""
    for tap, name, what in (("wte", "other-ids", "ids"), ("wpe", "other-positions", "positions")):
        asked = scene.inputs.ids if tap == "wte" else scene.inputs.positions  # [batch, pos] or [pos]
        found = _found_rows(scene, tap, asked) if tap in wrong else None
        if found is None:
            continue
        at = next((index for index in (found != asked).nonzero().tolist()), None)
        if at is None:
            continue
        given = replace(scene.inputs, ids=found) if tap == "wte" else replace(scene.inputs, position_ids=found)
        place = tuple(at)
        yield Reading(
            name=name,
            text=f"{tap} holds the rows of other {what} than stated: at {at} that of {int(found[place])}, not {int(asked[place])}",
            next_step=f"write the {what} that your engine ran, or look at how it comes by them",
            scene=replace(scene, stages={**scene.stages, tap: build_chain(scene.config, scene.weights, given)[tap]}),
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


def _other_weights(scene: Scene, stated: Stated, wrong: Sequence[str]) -> Iterator[Reading]:
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


def _with_positions(scene: Scene, positions: Tensor) -> Scene:
    inputs = replace(scene.inputs, position_ids=positions)
    return replace(scene, inputs=inputs, stages=build_chain(scene.config, scene.weights, inputs))


def left_padding(inputs: Inputs) -> tuple[int, ...]:
    """The rows, counted from 0, in which padding stands before a token."""
    before = (~inputs.real).cumsum(dim=-1)  # [batch, pos]
    return tuple(((before > 0) & inputs.real).any(dim=-1).nonzero()[:, 0].tolist())


def unstated_positions(inputs: Inputs) -> tuple[str, ...]:
    """What to say of rows that begin with padding where no position_ids are written; nothing where there are none.

    >>> from labkit.verification.chain import Inputs
    >>> padded = Inputs(torch.tensor([[5, 6], [0, 7]]), torch.tensor([[1, 1], [0, 1]]))
    >>> print(*unstated_positions(padded))
    padding stands before the tokens of row 1, and without position_ids positions count it too: the values there are ...
    """
    rows = left_padding(inputs)
    if not rows:
        return ()
    names = f"{'row' if len(rows) == 1 else 'rows'} {listed(map(str, rows), most=_SHOWN)}"
    return (
        f"padding stands before the tokens of {names}, and without position_ids positions count it too: the values there are "
        "not those of the prompt alone. If your engine counts the tokens only, write position_ids; if it does not, let it "
        "(positions-ignore-padding)",
    )


def positions_of_tokens(inputs: Inputs) -> Tensor:
    """Positions that count the tokens before, padding left out: [batch, pos]."""
    return (inputs.real.long().cumsum(dim=-1) - 1).clamp(min=0)


def _dtypes(scene: Scene, stated: Stated, _wrong: Sequence[str]) -> Iterator[Reading]:
    """Arithmetic of another dtype than declared where every value shows it, or else weights of another."""
    declared, told = scene.precision, stated.words
    for dtype in NARROW:
        if unit_roundoff(dtype) > unit_roundoff(declared.compute) and _held_by(dtype, scene):
            computed = replace(Precision.of(dtype), accumulate=declared.accumulate)
            for weight in dict.fromkeys((dtype, declared.weight)):
                also = f" and weight_dtype {_name(weight)}" if weight != declared.weight else ""
                yield Reading(
                    name="compute_dtype",
                    text=f"{told.declared.format(key='compute_dtype', value=_name(declared.compute))}; "
                    f"its values are those of {_name(dtype)}",
                    next_step=told.arithmetic.format(name=_name(dtype), also=also),
                    scene=_with_precision(scene, stated, replace(computed, weight=weight)),
                )
    for dtype in (torch.float32, *NARROW):
        if dtype != declared.weight:
            was, name = _name(declared.weight), _name(dtype)
            yield Reading(
                name="weight_dtype",
                text=f"{told.declared.format(key='weight_dtype', value=was)}; its values are those of weights in {name}",
                next_step=told.weights.format(name=name, was=was),
                scene=_with_precision(scene, stated, replace(declared, weight=dtype)),
            )


def _with_precision(scene: Scene, stated: Stated, precision: Precision) -> Scene:
    if precision.weight == scene.precision.weight:
        return replace(scene, precision=precision)
    weights = parameters_of(load_reference(stated.folder, weight_dtype=precision.weight, config=stated.config))
    stages = build_chain(scene.config, weights, scene.inputs)
    return replace(scene, weights=weights, stages=stages, precision=precision)


def _held_by(dtype: torch.dtype, scene: Scene) -> bool:
    """Whether every recorded value is one that ``dtype`` holds: only arithmetic in it gives that."""
    taps = [tap for tap in scene.stages if tap in scene.candidate and tap not in TABLES]
    return bool(taps) and all(_narrow(scene.candidate[tap], dtype, compared(tap, scene.inputs)) for tap in taps)


def _narrow(value: Tensor, dtype: torch.dtype, mask: Tensor) -> bool:
    return bool(((value.to(dtype).to(value.dtype) == value) | ~mask.expand(value.shape)).all())


def _name(dtype: torch.dtype) -> str:
    return next(name for name, each in DTYPES.items() if each == dtype)


def _recordings(scene: Scene, stated: Stated, wrong: Sequence[str]) -> Iterator[Reading]:
    """What may have gone wrong while the values were written down."""
    yield from _twins(scene, stated, wrong)
    for tap in wrong:
        value = scene.candidate[tap]
        if not bool(value.any()):
            yield Reading(
                name="never-written",
                text=f"every element of {tap} is zero: {stated.words.empty}",
                next_step=stated.words.fill,
                scene=_without(scene, [tap]),
                about=(tap,),
            )
        for before, after in _repeated(stated.passes(tap)):
            names = [tap if number == 0 else f"step.{number - 1}.{tap}" for number in (before, after)]
            yield Reading(
                name="recorded-once",
                text=f"{names[1]} is byte for byte {names[0]}, though each step has a position of its own: not recorded anew?",
                next_step=f"record {tap} in every step",
                scene=_without(scene, [tap]),
                about=(tap,),
            )
        yield from _layouts(scene, stated, tap)
    for tap in wrong:
        consumers = [
            name for name in wrong if tap in recorded_inputs(scene.stages[name], scene.stages, set(scene.candidate))
        ]
        if consumers:
            yield Reading(
                name="recorded-elsewhere",
                text=f"{listed(consumers, most=2)} {'was' if len(consumers) == 1 else 'were'} not computed from what {tap} holds: "
                "is it of another place?",
                next_step=stated.words.elsewhere.format(tap=tap),
                scene=_without(scene, [tap]),
                about=(tap,),
            )


def _repeated(passes: Sequence[Tensor]) -> Iterator[tuple[int, int]]:
    """The first two decode steps, counted from 1 (0 is the prompt), that hold one value."""
    for after in range(1, len(passes)):
        for before in range(after):
            if torch.equal(passes[before], passes[after]):
                yield before, after
                return


def _twins(scene: Scene, stated: Stated, wrong: Sequence[str]) -> Iterator[Reading]:
    """Taps that hold the bytes of another: one buffer recorded under several names, first or last."""
    for names in _groups(scene, wrong):
        told = "is byte for byte" if len(names) == 2 else "are each byte for byte"
        for kept in (names[-1], names[0]):
            others = tuple(tap for tap in names if tap != kept)
            yield Reading(
                name="recorded-twice",
                text=f"{listed(others, most=6)} {told} {kept}: {stated.words.copied}",
                next_step=stated.words.uncopy,
                scene=_without(scene, others),
                about=others,
            )
        right = [tap for tap in names if tap not in wrong]
        if len(right) == 1:  # what follows was computed from the copy
            others = tuple(tap for tap in names if tap in wrong)
            yield Reading(
                name="one-buffer",
                text=f"{listed(others, most=6)} {told} {right[0]}, and what follows was computed from it: one buffer for both?",
                next_step="give each stage a buffer of its own",
                scene=scene,
                about=others,
            )


def _groups(scene: Scene, wrong: Sequence[str]) -> list[tuple[str, ...]]:
    """Sets of taps with equal values, zeros left out, that one which differs belongs to."""
    found: list[tuple[str, ...]] = []
    for tap in wrong:
        value = scene.candidate[tap]
        if any(tap in group for group in found) or not bool(value.any()):
            continue
        same = [tap]
        for other in scene.stages:
            if other != tap and other in scene.candidate:
                held = scene.candidate[other]
                if held.shape == value.shape and held.dtype == value.dtype and torch.equal(held, value):
                    same.append(other)
        if len(same) > 1:
            found.append(tuple(each for each in scene.stages if each in same))
    return found


def _layouts(scene: Scene, stated: Stated, tap: str) -> Iterator[Reading]:
    """The right shape, and the values in another order of its axes."""
    value = scene.candidate[tap].double()
    true = expect_locally(scene.stages[tap], scene.stages, scene.candidate, scene.precision).output
    layout = fitting_layout(value, true, compared(tap, scene.inputs)) if true.shape == value.shape else None
    if layout is not None:
        yield Reading(
            name="axes-reordered",
            text=written_otherwise(tap, layout),
            next_step=f"{layout.describe(value.shape)} {stated.words.back}",
            scene=replace(scene, candidate={**scene.candidate, tap: layout.restore(scene.candidate[tap])}),
        )


def _without(scene: Scene, taps: Sequence[str]) -> Scene:
    return replace(scene, candidate={name: value for name, value in scene.candidate.items() if name not in taps})
