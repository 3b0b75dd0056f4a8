"""A trace's values -> the defects that the bytes show by themselves; one pass over the file, a bounded part at a time.

non-finite, unwritten (all zero), aliased, stale, a future that is not zero, values narrower than declared.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.compare.difference import unravel
from labkit.storage.widening import torch_dtype
from labkit.verification.lint_defects import Defect
from labkit.verification.trace import Trace
from labkit.verification.trace_names import IDS, INPUT_NAMES, split_block, split_step
from labkit.verification.trace_sequence import FLOATS, Pass, joined_inputs
from labkit.words import counted

ATTENTION_MAPS = (".attn.scores", ".attn.pattern")


@dataclass(frozen=True)
class Scan:
    """What one pass over a tensor's bytes tells."""

    name: str
    digest: bytes
    zero: bool
    """Every element is zero."""
    non_finite: int
    first_bad: int
    """Flat index of the first element that is not finite."""
    narrow: bool
    """Every element is one that bfloat16 holds."""


def scan(trace: Trace, name: str) -> Scan:
    """Read a tensor once, in chunks."""
    entry = trace.entry(name)
    hasher, zero, bad, first, narrow, seen = hashlib.blake2b(), True, 0, -1, entry.dtype == "F32", 0
    for chunk in trace.file.chunks(name):
        hasher.update(chunk.numpy().data)
        if entry.dtype in FLOATS:
            values = chunk.view(torch_dtype(entry.dtype))  # [n]
            finite = torch.isfinite(values)
            if not bool(finite.all()):
                first = seen + int((~finite).to(torch.int8).argmax()) if first < 0 else first
                bad += int((~finite).sum())
            seen += values.numel()
        zero = zero and not bool(chunk.any())
        narrow = narrow and not bool((chunk.view(torch.int32) & 0xFFFF).any())
    return Scan(name, hasher.digest(), zero and entry.numel > 0, bad, first, narrow)


def content_defects(trace: Trace, scans: Sequence[Scan], passes: Sequence[Pass]) -> Iterator[Defect]:
    """Every defect that the values show; without ``passes`` (unusable inputs) padding and the future are not known."""
    for each in scans:
        if each.zero and split_step(each.name)[1] not in INPUT_NAMES:
            yield Defect(
                code="unwritten",
                tensor=each.name,
                what="every element is zero",
                fix="copy the buffer out after the stage is computed",
            )
        if each.non_finite:
            yield from _non_finite(trace, each, passes)
    yield from _aliased(trace, scans)
    yield from _stale(trace, scans)
    yield from _narrow(trace, scans)
    for each_pass in passes:
        for name in trace:
            if split_step(name)[0] == each_pass.step and name.endswith(".attn.pattern"):
                yield from _future(trace, name, each_pass, passes)


def _visible(each: Pass, passes: Sequence[Pass]) -> Tensor:
    """bool [batch, pos_q, pos_k]: keys that a query of the pass may see; none for a query that is padding."""
    real = joined_inputs(tuple(passes)).real[:, : each.sizes.past + each.sizes.pos]  # [batch, pos_k]
    causal = torch.ones(each.sizes.pos, real.shape[1], dtype=torch.bool).tril(each.sizes.past)  # [pos_q, pos_k]
    return causal & real[:, None, :] & real[:, -each.sizes.pos :, None]


def _non_finite(trace: Trace, scanned: Scan, passes: Sequence[Pass]) -> Iterator[Defect]:
    step, tap = split_step(scanned.name)
    here = next((each for each in passes if each.step == step), None)
    entry = trace.entry(scanned.name)
    count, first = scanned.non_finite, scanned.first_bad
    if here is not None and tap.endswith(ATTENTION_MAPS) and entry.shape[-2:] == _visible(here, passes).shape[-2:]:
        # Masked scores may be -inf, and rows of padding anything.
        bad = ~torch.isfinite(trace[scanned.name]) & _visible(here, passes)[:, None]  # [batch, head, pos_q, pos_k]
        if not bool(bad.any()):
            return
        count, first = int(bad.sum()), int(bad.flatten().to(torch.int8).argmax())
    yield Defect(
        code="non-finite",
        tensor=scanned.name,
        what=f"{count} of {entry.numel} elements are NaN or infinite, the first at {list(unravel(first, entry.shape))}",
        fix="look for an overflow, or a division by zero, in this stage or before it",
    )


def _future(trace: Trace, name: str, each: Pass, passes: Sequence[Pass]) -> Iterator[Defect]:
    """Attention on what a query may not see: the future, or padding."""
    visible = _visible(each, passes)  # [batch, pos_q, pos_k]
    entry = trace.entry(name)
    if len(entry.shape) != 4 or entry.shape[0] != visible.shape[0] or entry.shape[2:] != visible.shape[1:]:
        return
    counted = visible.any(dim=-1)  # [batch, pos_q]
    plane, heads = visible[0].numel(), entry.shape[1]
    leaks, largest, first, turned = 0, 0.0, None, each.sizes.past == 0
    for number in range(entry.shape[0] * heads):
        row, head = divmod(number, heads)
        pattern = trace.file.slice(name, number * plane, plane).view(visible.shape[1:])  # [pos_q, pos_k]
        leak = (pattern != 0) & ~visible[row] & counted[row, :, None]  # [pos_q, pos_k]
        turned = turned and not bool(((pattern.T != 0) & ~visible[row] & counted[row, :, None]).any())
        if bool(leak.any()):
            leaks += int(leak.sum())
            largest = max(largest, float(pattern[leak].abs().max()))
            first = first or [row, head, *(int(i) for i in leak.nonzero()[0])]
    if leaks and turned:
        yield Defect(
            code="layout",
            tensor=name,
            what="above the diagonal it is not zero, but its transpose is",
            fix="transpose axes 2 and 3, to [batch, head, pos_q, pos_k]",
        )
    elif leaks:
        yield Defect(
            code="future",
            tensor=name,
            what=f"{leaks} entries for keys that the query may not see are not exactly 0 (largest {largest:.3g}, first {first})",
            fix="mask the future and padding before the softmax",
        )


def _aliased(trace: Trace, scans: Sequence[Scan]) -> Iterator[Defect]:
    """Taps of one pass that hold the same bytes."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for each in scans:
        step, tap = split_step(each.name)
        entry = trace.entry(each.name)
        if tap in INPUT_NAMES or each.zero or _one_key(tap, entry.shape):
            continue
        groups.setdefault((step, entry.dtype, entry.shape, each.digest), []).append(each.name)
    for names in groups.values():
        if len(names) > 1:
            yield Defect(
                code="aliased",
                tensor=names[1],
                what=f"byte for byte the same as {', '.join(n for n in names if n != names[1])}",
                fix="copy each buffer when its stage is computed, before the next one overwrites it",
            )


def _one_key(tap: str, shape: Sequence[int]) -> bool:
    """With a single key every pattern is 1 and z is v: equal bytes mean nothing."""
    stage = split_block(tap)[1]
    return (stage == "attn.pattern" and shape[-1:] == (1,)) or (stage in ("attn.z", "attn.v") and shape[2:3] == (1,))


def _stale(trace: Trace, scans: Sequence[Scan]) -> Iterator[Defect]:
    """Taps that hold the same bytes in two passes."""
    digests = {each.name: each.digest for each in scans}
    seen: dict[tuple[object, ...], str] = {}
    for each in scans:
        step, tap = split_step(each.name)
        if tap in INPUT_NAMES or each.zero:
            continue
        prefix = each.name.removesuffix(tap)
        # The same token has the same row of wte at every step.
        given = digests.get(prefix + IDS) if tap == "wte" else None
        key = (tap, trace.entry(each.name).shape, each.digest)
        earlier = seen.setdefault(key, each.name)
        if earlier == each.name or (given is not None and given == digests.get(earlier.removesuffix(tap) + IDS)):
            continue
        yield Defect(
            code="stale",
            tensor=each.name,
            what=f"byte for byte the same as {earlier}, though every step has a position of its own",
            fix=f"record it anew in step {step}",
        )


def _narrow(trace: Trace, scans: Sequence[Scan]) -> Iterator[Defect]:
    """Values that only bfloat16 arithmetic gives, under a declaration of float32; a tap of zeros tells nothing."""
    tables = (*INPUT_NAMES, "wte", "wpe")
    written = [s for s in scans if not s.zero and split_step(s.name)[1] not in tables]
    wide = [s for s in written if trace.entry(s.name).dtype == "F32"]
    if wide and trace.metadata.precision.compute == torch.float32 and all(s.narrow for s in wide):
        yield Defect(
            code="precision",
            tensor=None,
            what=f"compute_dtype says float32, but every value of the {counted(len(wide), 'F32 tap')} is a bfloat16 number",
            fix="declare compute_dtype bfloat16, or record the values before they are rounded",
        )
