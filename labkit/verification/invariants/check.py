"""All invariants of one engine: labkit's model, a user's callable, or a trace file."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from labkit.errors import TraceError
from labkit.model import GPT2
from labkit.verification.chain import Inputs
from labkit.verification.invariants import recorded, rerun
from labkit.verification.invariants.engine import Engine, Logits, callable_engine, model_engine, row_of
from labkit.verification.invariants.result import InvariantResult, merge_invariants, not_applicable
from labkit.verification.invariants.rows import alike_rows
from labkit.verification.invariants.yardstick import Yardstick
from labkit.verification.trace import Trace
from labkit.verification.trace_sequence import TraceSequence, config_differences

INVARIANTS = ("causality", "prefix", "cache", "batch", "padding", "pattern", "token-0", "tied-logits")
"""In the order they are reported."""

RANDOM_LENGTH = 12
"""Tokens of the row that is drawn where no ids are given."""


def check_model(
    model: GPT2, *, reference: GPT2 | None = None, ids: Sequence[Sequence[int]] | None = None
) -> tuple[InvariantResult, ...]:
    """Every invariant of labkit's model, which may have a fault planted; ``reference`` is the checkpoint as it is.

    >>> from labkit.load import load_gpt2
    >>> from labkit.verification.faults import FAULTS
    >>> model = load_gpt2()
    >>> {result.verdict for result in check_model(model)}
    {'held'}
    >>> [each.name for each in check_model(FAULTS["no-mask"].plant(model), reference=model) if each.verdict == "broken"]
    ['causality', 'prefix', 'cache', 'pattern', 'token-0']
    """
    return check_engine(model_engine(model), model if reference is None else reference, ids=ids)


def check_callable(
    function: Logits,
    reference: GPT2,
    *,
    masked: Callable[[Tensor, Tensor], Tensor] | None = None,
    cached: Logits | None = None,
    ids: Sequence[Sequence[int]] | None = None,
) -> tuple[InvariantResult, ...]:
    """The invariants that show in the logits of ``function(ids [batch, pos]) -> [batch, pos, vocab]``.

    ``reference``: labkit's model of the same checkpoint, in the dtype that the function computes in: it says what
    rounding explains. ``masked(ids, attention_mask)`` is asked for padding, and ``cached(ids)``, which computes the
    same one token at a time, for the KV cache. Raises ``ArgumentError`` where no logits come back.

    >>> from labkit.load import load_gpt2
    >>> model = load_gpt2()
    >>> results = check_callable(lambda ids: model(ids.flip(1)).flip(1), model)
    >>> [result.name for result in results if result.verdict == "broken"]
    ['causality', 'prefix']
    """
    return check_engine(callable_engine(function, masked=masked, cached=cached), reference, ids=ids)


def check_engine(
    engine: Engine, reference: GPT2, *, ids: Sequence[Sequence[int]] | None = None
) -> tuple[InvariantResult, ...]:
    """The same for what was made into an ``Engine``; over several rows of ids the worst of each counts."""
    rows = _drawn(reference) if ids is None else [torch.tensor([list(row)]) for row in ids]  # each [1, pos]
    with torch.inference_mode():
        yardstick = Yardstick(reference, rows[0])
        each = [_one_row(engine, row, yardstick) for row in rows]
    return tuple(merge_invariants(parts) for parts in zip(*each, strict=True))


def _one_row(engine: Engine, ids: Tensor, yardstick: Yardstick) -> tuple[InvariantResult, ...]:
    taps, inputs, precision = row_of(engine.run(ids), 0), Inputs(ids), yardstick.precision
    rerunning = {
        "causality": rerun.causality,
        "prefix": rerun.prefix,
        "cache": rerun.cache,
        "batch": rerun.batch,
        "padding": rerun.padding,
    }
    results = [_asked(name, check, engine, ids, yardstick) for name, check in rerunning.items()]
    return (
        *results,
        recorded.pattern_rows(taps, inputs, precision),
        recorded.token_zero(taps, inputs, yardstick, precision),
        recorded.tied_logits(taps, inputs, yardstick, precision),
    )


def _asked(
    name: str,
    check: Callable[[Engine, Tensor, Yardstick], InvariantResult],
    engine: Engine,
    ids: Tensor,
    yardstick: Yardstick,
) -> InvariantResult:
    """The result of a check; an engine that cannot run in that way (a batch, one token) leaves it unanswered."""
    try:
        return check(engine, ids, yardstick)
    except Exception as error:  # whatever a user's engine raises
        reason = str(error).partition("\n")[0]
        return not_applicable(name, f"the engine could not be run so: {type(error).__name__}: {reason}")


def _drawn(reference: GPT2) -> list[Tensor]:
    """One row of random ids (seed 0), [1, pos]."""
    config = reference.config
    length = min(RANDOM_LENGTH, config.n_positions)
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(config.vocab_size, (1, length), generator=generator)]


def check_trace(trace: Trace, reference: GPT2) -> tuple[InvariantResult, ...]:
    """The invariants that a trace file shows by itself, in the precision that it declares.

    ``reference``: labkit's model of the checkpoint, in the trace's compute dtype. Raises ``TraceError`` where the
    trace is of another model.
    """
    for line in config_differences(trace.config, reference.config):
        if line.split(" ")[0] in ("vocab_size", "n_embd", "n_layer", "n_head", "n_inner", "n_positions"):
            raise TraceError(f"the trace is of another model: {line}", where=trace.path, fix="give its own checkpoint")
    taps = TraceSequence(trace)
    inputs, precision = taps.inputs, trace.metadata.precision
    reason = "a file cannot be run again"
    with torch.inference_mode():
        yardstick = Yardstick(reference, inputs.ids[:1][inputs.real[:1]][None], precision=precision)
        results = (
            alike_rows(taps, inputs, yardstick, padded=False),
            not_applicable("prefix", reason),
            _cache_of(taps),
            not_applicable("batch", reason),
            alike_rows(taps, inputs, yardstick, padded=True),
            recorded.pattern_rows(taps, inputs, precision),
            recorded.token_zero(taps, inputs, yardstick, precision),
            recorded.tied_logits(taps, inputs, yardstick, precision),
        )
    return tuple(replace(result, name=name) for name, result in zip(INVARIANTS, results, strict=True))


def _cache_of(taps: TraceSequence) -> InvariantResult:
    """Whether the keys and values that decode steps show of earlier positions are those that were computed there."""
    if not taps.step_count:
        return not_applicable("cache", "the trace has no decode steps")
    stale = taps.stale_cache()
    if stale:
        return InvariantResult(
            name="cache", verdict="broken", detail=stale[0], where=stale[0].split(" ")[0], used=float("inf")
        )
    shown = any(name.endswith((".attn.k", ".attn.v")) for name in taps)
    if not shown:
        return not_applicable("cache", "the decode steps show no keys and values")
    return InvariantResult(
        name="cache", verdict="held", detail=f"keys and values stay as computed over {taps.step_count} decode steps"
    )
