"""Two trace files -> what differs, in a fixed order: names, shape, dtype, finiteness, values. ``actual`` comes first.

Values are read a bounded part at a time, so that files far larger than memory can be compared. What counts as equal is
an absolute tolerance that the caller states, or budgets: with a checkpoint both traces are held against the truth; without
one the budget is estimated from the sizes of the values and the number of roundings so far.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from labkit.compare import Difference, measure
from labkit.compare.difference import unravel
from labkit.config import GPT2Config
from labkit.errors import ArgumentError, TraceError
from labkit.model.taps import tap_axes, tap_names
from labkit.storage.widening import torch_dtype
from labkit.verification.budget import share_of
from labkit.verification.precision import PRODUCT_FACTOR, unit_roundoff
from labkit.verification.report import Report
from labkit.verification.trace import Trace, open_trace
from labkit.verification.trace_comparison import Problem, Rule, TapComparison, TraceComparison
from labkit.verification.trace_names import INPUT_NAMES, ordered_taps, split_block, split_step
from labkit.verification.trace_sequence import Pass, joined_inputs, passes_of, require_float
from labkit.verification.ulps import UlpHistogram
from labkit.verification.verify import Progress
from labkit.verification.verify_trace import verify_trace

PART_NUMEL = 1 << 19
"""Elements compared at a time: about ten float64 tensors of this size are alive at once (4 MiB each)."""


def compare_traces(
    actual: str | Path,
    expected: str | Path,
    *,
    atol: float | None = None,
    folder: str | Path | None = None,
    ulps: Literal["off", "on"] = "off",
    progress: Progress | None = None,
) -> TraceComparison:
    """Compare the traces at ``actual`` and ``expected``.

    ``atol``: the largest absolute error that counts as equal. ``folder``: the checkpoint that both ran, to hold both
    against the truth. ``ulps="on"`` counts the errors in ULPs by dtype and binade.
    Raises ``TraceError`` where the two are not of one prompt, or a file cannot be used.

    >>> import tempfile
    >>> from labkit.verification.trace import write_trace
    >>> from labkit.verification.trace_record import record_trace
    >>> files = [Path(tempfile.mkdtemp()) / name for name in ("a.safetensors", "b.safetensors")]
    >>> for file, plant in zip(files, (["erf-gelu:1"], [])):
    ...     run = record_trace(engine="labkit", ids=[[5, 7, 9]], plant=plant)
    ...     write_trace(file, run.tensors, run.metadata)
    >>> compare_traces(*files, atol=1e-5).first_divergence
    'h.1.mlp.post'
    """
    if atol is not None and (folder is not None or not 0 <= atol < math.inf):
        raise ArgumentError(
            "the tolerance cannot be used", where="atol", got=atol, fix="give a number from 0 on, and no model with it"
        )
    rule: Rule = "atol" if atol is not None else "estimate" if folder is None else "checkpoint"
    histograms: dict[torch.dtype, UlpHistogram] | None = {} if ulps == "on" else None
    with open_trace(actual, mode="copy") as a, open_trace(expected, mode="copy") as e:
        _require_one_prompt(a, e)
        passes = passes_of(e)
        allowed = _Allowance(rule, atol or 0.0, a, e)
        taps = [_compare_tap(name, a, e, passes, allowed, histograms) for name in _names(a, e)]
        if not any(tap.difference for tap in taps) and not any(tap.differs for tap in taps):
            raise TraceError("the traces have no tap in common", where=f"{actual} and {expected}")
        notes = _notes(a, e, rule)
        every = {each.prefix + tap for each in passes for tap in tap_names(e.config)}
        stage_count = len(every.union(tap.name for tap in taps))
    reports = None
    if folder is not None:
        reports = (verify_trace(actual, folder, progress=progress), verify_trace(expected, folder, progress=progress))
        taps = [_judged(tap, reports) for tap in taps]
        notes = (*notes, f"actual against the checkpoint: {reports[0].headline()}")
        notes = (*notes, f"expected against the checkpoint: {reports[1].headline()}")
    return TraceComparison(
        actual=Path(actual),
        expected=Path(expected),
        rule=rule,
        atol=atol,
        taps=tuple(taps),
        stage_count=stage_count,
        reports=reports,
        histograms=tuple((histograms or {}).values()),
        notes=notes,
    )


def _require_one_prompt(actual: Trace, expected: Trace) -> None:
    if actual.config.n_layer != expected.config.n_layer or actual.config.n_head != expected.config.n_head:
        raise TraceError(
            "the traces are of two models",
            where=actual.path,
            expected=f"{expected.config.n_layer} blocks and {expected.config.n_head} heads",
            got=f"{actual.config.n_layer} and {actual.config.n_head}",
        )
    for name in sorted({each for each in (*actual, *expected) if split_step(each)[1] in INPUT_NAMES}):
        for one, other in ((actual, expected), (expected, actual)):
            if name not in one and name in other and name.endswith("input_ids"):
                raise TraceError(f"{name} is missing", where=one.path, fix="compare runs of the same steps")
        if name in actual and name in expected and not torch.equal(actual[name].long(), expected[name].long()):
            raise TraceError(
                f"{name} is not the same in both traces",
                where=f"{actual.path} and {expected.path}",
                fix="run both engines on the same ids",
            )


def _names(actual: Trace, expected: Trace) -> list[str]:
    """Every tap's name in either trace, in order of computation."""
    order = {name: place for place, name in enumerate(ordered_taps(expected.config))}

    def place(name: str) -> tuple[int, int, str]:
        step, tap = split_step(name)
        return -1 if step is None else step, order.get(tap, len(order)), name

    return sorted({n for n in (*actual, *expected) if split_step(n)[1] not in INPUT_NAMES}, key=place)


def _notes(actual: Trace, expected: Trace, rule: Rule) -> tuple[str, ...]:
    a, e = (trace.metadata.precision.describe() for trace in (actual, expected))
    notes = [f"actual: {actual.metadata.engine}, {a}; expected: {expected.metadata.engine}, {e}"]
    if rule == "estimate":
        notes.append("budgets are estimated from the values' sizes; with --model they come from the checkpoint")
    return tuple(notes)


class _Allowance:
    """What error is allowed at each element: the stated tolerance, or an estimate of what rounding explains.

    The estimate takes every row's largest value for the size of what was summed, and lets the roundings so far add up
    like a random walk, in both engines: factor * sqrt(terms) * (u + u) * largest. A gather must be exact.
    """

    def __init__(self, rule: Rule, atol: float, actual: Trace, expected: Trace) -> None:
        self._rule, self._atol = rule, atol
        self._traces = (actual, expected)
        keys = max(trace.inputs(step).ids.shape[1] for trace in (expected,) for step in trace.steps)
        self._walk = dict(_walks(expected.config, keys))

    def __call__(self, name: str, expected: Tensor, counted: Tensor) -> Tensor:
        """The allowance for some rows of a tensor, [rows, width] or narrower."""
        if self._rule == "atol":
            return torch.full((1, 1), self._atol, dtype=torch.float64)
        if self._rule == "checkpoint":
            return torch.full((1, 1), torch.inf, dtype=torch.float64)
        tap = split_step(name)[1]
        largest = torch.where(counted, expected.double().abs(), 0.0).nan_to_num(posinf=0.0).amax(dim=-1, keepdim=True)
        if tap.endswith(".attn.scores"):  # a row of few keys may hold small scores only, by cancellation
            largest = largest.max()
        roundoff = self._roundoff(self._traces[0], name) + self._roundoff(self._traces[1], name)
        walked: float = PRODUCT_FACTOR * self._walk.get(tap, 0.0) ** 0.5
        return walked * roundoff * largest  # [rows, 1]

    def _roundoff(self, trace: Trace, name: str) -> float:
        stored = torch_dtype(trace.entry(name).dtype)
        return max(unit_roundoff(trace.metadata.precision.compute), unit_roundoff(stored))


def _walks(config: GPT2Config, keys: int) -> Iterator[tuple[str, float]]:
    """Each tap, and the number of roundings that led to it."""
    sums = {
        "attn.scores": config.head_dim,
        "attn.pattern": keys,
        "attn.z": keys,
        "mlp.out": config.inner,
        "embed": 1,
        "resid_mid": 1,
        "resid_post": 1,
        "mlp.post": 1,
        "wte": 0,
        "wpe": 0,
    }
    total = 0
    for tap in tap_names(config):
        block, stage = split_block(tap)
        total += sums.get(stage, config.n_embd)
        yield tap, float(total)
        if stage == "attn.q":
            yield f"{block}attn.c_attn", float(total)
        if stage == "attn.z":
            yield f"{block}attn.merged", float(total)


def _compare_tap(
    name: str,
    actual: Trace,
    expected: Trace,
    passes: Sequence[Pass],
    allowed: _Allowance,
    histograms: dict[torch.dtype, UlpHistogram] | None,
) -> TapComparison:
    if name not in actual or name not in expected:
        return TapComparison(name=name, problem="missing" if name not in actual else "extra")
    a, e = actual.entry(name), expected.entry(name)
    for trace, entry in ((actual, a), (expected, e)):
        require_float(trace, entry)
    if a.shape != e.shape:
        return TapComparison(name=name, problem="shape", remark=f"{list(a.shape)}, expected {list(e.shape)}")
    remark = "" if a.dtype == e.dtype else f"{a.dtype}, expected {e.dtype}"
    parts = list(_parts(name, actual, expected, passes, allowed, histograms))
    difference = _merged([part[0] for part in parts], e.shape)
    used = max((part[1] for part in parts), default=0.0)
    problem: Problem = "non-finite" if difference.non_finite else "values" if used > 1 else ""
    beyond = sum(part[2] for part in parts)
    return TapComparison(name=name, problem=problem, remark=remark, difference=difference, used=used, beyond=beyond)


def _parts(
    name: str,
    actual: Trace,
    expected: Trace,
    passes: Sequence[Pass],
    allowed: _Allowance,
    histograms: dict[torch.dtype, UlpHistogram] | None,
) -> Iterator[tuple[Difference, float, int]]:
    """The difference of some rows at a time, placed in the tensor's own rows, the share used, and elements beyond."""
    shape = expected.entry(name).shape
    width = shape[-1] if shape else 1
    rows = prod(shape[:-1])
    step = max(1, PART_NUMEL // max(width, 1))
    for start in range(0, rows, step):
        count = min(step, rows - start)
        a, e = (trace.file.slice(name, start * width, count * width) for trace in (actual, expected))
        a, e = a.view(count, width), e.view(count, width)  # each [rows, width]
        counted = _counted(name, shape, start, count, passes)  # [rows, 1] or [rows, width]
        if histograms is None and torch.equal(a, e):
            same = measure(a[:1], e[:1])
            yield replace(same, worst=(start, 0), numel=int(counted.expand_as(a).sum())), 0.0, 0
            continue
        difference = measure(a, e, where=counted)
        off = torch.where(counted & torch.isfinite(a) & torch.isfinite(e), (a.double() - e.double()).abs(), 0.0)
        share = share_of(off, allowed(name, e, counted))  # [rows, width]
        if histograms is not None:
            taken = counted.expand_as(a)
            histograms.setdefault(a.dtype, UlpHistogram(a.dtype)).add(a[taken], e[taken])
        place = (start + difference.worst[0], difference.worst[1])
        yield replace(difference, worst=place), float(share.max()), int((share > 1).sum())


def _counted(name: str, shape: tuple[int, ...], start: int, count: int, passes: Sequence[Pass]) -> Tensor:
    """bool [rows, 1] or [rows, width]: the elements that mean something; padding and masked scores do not."""
    step, tap = split_step(name)
    here = next((each for each in passes if each.step == step), None)
    try:
        axes = tap_axes(tap)
    except KeyError:
        axes = ()
    if here is None or len(axes) != len(shape) or axes[0] != "batch":
        return torch.ones(count, 1, dtype=torch.bool)
    at = dict(zip(axes, torch.unravel_index(torch.arange(start, start + count), shape[:-1]), strict=False))
    inputs = joined_inputs(tuple(passes))
    end = here.sizes.past + here.sizes.pos
    pos = at["pos_q"] if "pos_q" in at else at["pos"]  # [rows]
    if shape[-2] == here.sizes.pos:
        pos = pos + here.sizes.past  # [rows]; keys and values of all positions are counted from the start
    real = inputs.real[at["batch"], pos]  # [rows]
    if tap.endswith(".attn.scores"):
        keys = torch.arange(end)  # [pos_k]
        seen = (keys <= pos[:, None]) & inputs.real[at["batch"], :end]  # [rows, pos_k]
        return seen & real[:, None]
    return real[:, None]


def _merged(parts: Sequence[Difference], shape: tuple[int, ...]) -> Difference:
    """The difference of the whole tensor, its place in the tensor's own axes."""
    if not parts:
        empty = torch.zeros(shape)
        return measure(empty, empty)
    largest = max(parts, key=lambda part: part.max_abs)
    width = shape[-1] if shape else 1
    numel = sum(part.numel for part in parts)
    return replace(
        largest,
        worst=unravel(largest.worst[0] * width + largest.worst[1], shape),
        max_rel=max(part.max_rel for part in parts),
        ulp=max(part.ulp for part in parts),
        mean_abs=sum(part.mean_abs * part.numel for part in parts) / max(numel, 1),
        numel=numel,
        non_finite=sum(part.non_finite for part in parts),
        equal=all(part.equal for part in parts),
    )


def _judged(tap: TapComparison, reports: tuple[Report, Report]) -> TapComparison:
    """The same tap with the verdict of the checkpoint: whichever trace uses more of its budget counts."""
    if tap.problem in ("missing", "extra", "shape"):
        return tap
    name = split_step(tap.name)[1]
    stages = [stage for report in reports for stage in report.stages if stage.name == name]
    if not stages:
        return tap
    worst = max(stages, key=lambda stage: stage.severity)
    problem: Problem = "" if worst.verdict == "same" else "non-finite" if worst.cause == "non-finite" else "values"
    return replace(tap, problem=problem, used=max(worst.used, worst.local_used))
