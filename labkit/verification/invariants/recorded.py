"""Invariants that are read off the taps of one run, from an engine or from a trace file.

    pattern      every row of the attention pattern is a distribution over the keys it may see, and 0 elsewhere
    token-0      the first token sees itself alone: z there is v_0, and attn.out is v_0 through c_proj
    tied-logits  logits are the dot products of wte's rows with one vector a position, ln_f's output

Budgets are those of the operation concerned, in the precision that the engine declares.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from labkit.compare.difference import unravel
from labkit.verification.budget import compared, expect, share_of, smallest, storage_uncertainty
from labkit.verification.chain import Inputs, Stage
from labkit.verification.invariants.engine import Taps
from labkit.verification.invariants.result import InvariantResult, merge_invariants, not_applicable
from labkit.verification.invariants.yardstick import Yardstick
from labkit.verification.operations import Mix, Product
from labkit.verification.precision import PRODUCT_FACTOR, Precision, unit_roundoff
from labkit.words import counted


def pattern_rows(taps: Taps, inputs: Inputs, precision: Precision) -> InvariantResult:
    """Every row of every pattern is at least 0, sums to one, and is 0 at keys that the query may not see."""
    found = [name for name in taps if name.endswith(".attn.pattern")]
    if not found:
        return not_applicable("pattern", "no attention pattern was shown")
    return _first(
        "pattern", (_pattern_of(tap, taps[tap], inputs, precision) for tap in found), counted(len(found), "pattern")
    )


def _pattern_of(tap: str, recorded: Tensor, inputs: Inputs, precision: Precision) -> InvariantResult:
    pattern = recorded.double()  # [batch, head, pos_q, pos_k]
    real = compared(tap, inputs)  # [batch, 1, pos_q, 1]
    unseen = torch.where(inputs.allowed, pattern.clamp(max=0.0), pattern).abs()  # [batch, head, pos_q, pos_k]
    result = _judge("pattern", tap, unseen, torch.zeros(()), real, "weight on a key that the query may not see")
    if result.verdict == "broken":
        return result
    error = (pattern.sum(dim=-1) - 1).abs()  # [batch, head, pos_q]
    budget = _sum_budget(pattern, recorded.dtype, precision)  # [batch, head, pos_q]
    return _judge("pattern", tap, error, budget, real[..., 0], "a row's sum is off one")


def _sum_budget(pattern: Tensor, stored: torch.dtype, precision: Precision) -> Tensor:
    """The denominator is a sum of pos_k terms; sum and weights are each rounded once; and as it was stored.

    Equal weights all round the same way, so that their errors add up and do not walk at random.
    """
    keys = pattern.shape[-1]
    size: Tensor = pattern.sum(dim=-1)  # [batch, head, pos_q]
    own: Tensor = 2 * unit_roundoff(precision.compute) * size + keys * smallest(precision.compute)
    own = own + PRODUCT_FACTOR * float(keys) ** 0.5 * unit_roundoff(precision.accumulate)
    if unit_roundoff(stored) <= unit_roundoff(precision.compute):
        return own
    return own + unit_roundoff(stored) * size + keys * smallest(stored)


def token_zero(taps: Taps, inputs: Inputs, yardstick: Yardstick, precision: Precision) -> InvariantResult:
    """At each row's first token, z is v there, and attn.out is that v through c_proj."""
    stages = yardstick.chain(inputs)
    first = inputs.real.long().argmax(dim=1)  # [batch]
    rows = torch.arange(len(first))  # [batch]
    parts = []
    for block in range(yardstick.config.n_layer):
        h = f"h.{block}.attn"
        if f"{h}.v" not in taps:
            continue
        recorded = taps[f"{h}.v"][rows, :, first][:, :, None]  # [batch, head, 1, head_dim]
        alone = torch.ones(len(rows), recorded.shape[1], 1, 1, dtype=torch.float64)  # [batch, head, pos_q, pos_k]
        mixed = Stage(f"{h}.z", (), Mix())
        z = expect(mixed, (alone, recorded.double()), _stored((alone, recorded), precision), precision)
        if f"{h}.z" in taps:
            actual = taps[f"{h}.z"][rows, :, first][:, :, None]  # [batch, head, 1, head_dim]
            parts.append((f"{h}.z", actual, z.output, z.budget, "the first token's z is not its v"))
        if f"{h}.out" in taps:
            out = expect(stages[f"{h}.out"], (z.output,), (z.budget,), precision)
            actual = taps[f"{h}.out"][rows, first][:, None]  # [batch, 1, n_embd]
            parts.append(
                (f"{h}.out", actual, out.output, out.budget, "the first token's attn.out is not its v through c_proj")
            )
    if not parts:
        return not_applicable("token-0", "no v was shown with a z or attn.out")
    results = (_held(tap, actual, output, budget, what, precision) for tap, actual, output, budget, what in parts)
    return _first("token-0", results, counted(len(parts), "tap"))


def _held(tap: str, actual: Tensor, output: Tensor, budget: Tensor, what: str, precision: Precision) -> InvariantResult:
    allowed = budget + storage_uncertainty(output, actual.dtype, precision)
    everywhere = torch.ones_like(output, dtype=torch.bool)
    return _judge("token-0", tap, (actual.double() - output).abs(), allowed, everywhere, what)


def _stored(values: Iterable[Tensor], precision: Precision) -> tuple[Tensor, ...]:
    return tuple(storage_uncertainty(value.double(), value.dtype, precision) for value in values)


def tied_logits(taps: Taps, inputs: Inputs, yardstick: Yardstick, precision: Precision) -> InvariantResult:
    """Logits are wte times ln_f's output; where only logits are shown, wte times *some* vector at each position."""
    if not yardstick.config.tie_word_embeddings:
        return not_applicable("tied-logits", "this checkpoint's head is a tensor of its own")
    if "logits" not in taps:
        return not_applicable("tied-logits", "no logits were shown")
    recorded = taps["logits"]
    logits, real = recorded.double(), inputs.real[:, :, None]  # [batch, pos, vocab], [batch, pos, 1]
    if logits.shape[-1] != yardstick.config.vocab_size:
        sizes = f"{logits.shape[-1]} logits a position, {yardstick.config.vocab_size} rows of wte"
        return InvariantResult(name="tied-logits", verdict="broken", detail=sizes, where="logits", used=math.inf)
    bad = ~torch.isfinite(torch.where(real, logits, 0.0))
    if bool(bad.any()):
        at = unravel(int(bad.flatten().to(torch.int8).argmax()), tuple(logits.shape))
        detail = f"a logit at {list(at)} is not finite"
        return InvariantResult(
            name="tied-logits", verdict="broken", detail=detail, where="logits", place=at, used=math.inf
        )
    if "ln_f" in taps:
        x, uncertain = taps["ln_f"].double(), _stored((taps["ln_f"],), precision)  # [batch, pos, n_embd]
        what = "not wte times ln_f"
    else:
        if yardstick.config.vocab_size <= yardstick.config.n_embd:
            return not_applicable("tied-logits", "with no more tokens than channels any logits fit")
        x, uncertain = _solved(logits, yardstick.weights["wte.weight"]), (torch.zeros(()),)  # [batch, pos, n_embd]
        what = "not wte times any vector"
    head = Stage("logits", ("ln_f",), Product(yardstick.weights["wte.weight"].T, None))
    expected = expect(head, (x,), uncertain, precision)
    budget = expected.budget + storage_uncertainty(expected.output, recorded.dtype, precision)
    result = _judge("tied-logits", "logits", (logits - expected.output).abs(), budget, real, what)
    return _first("tied-logits", [result], what.removeprefix("not "))


def _solved(logits: Tensor, wte: Tensor) -> Tensor:
    """The vectors whose products with wte come nearest to the logits, in float64."""
    flat = logits.flatten(0, -2).T  # [vocab, batch * pos]
    solved: Tensor = torch.linalg.lstsq(wte, flat).solution.T  # [batch * pos, n_embd]
    return solved.reshape(*logits.shape[:-1], wte.shape[1])


def _judge(name: str, tap: str, error: Tensor, budget: Tensor, mask: Tensor, what: str) -> InvariantResult:
    share = share_of(error.nan_to_num(nan=math.inf), budget, mask)
    worst = int(share.argmax())
    used, largest = float(share.flatten()[worst]), float(error.flatten()[worst])
    place = unravel(worst, tuple(error.shape))
    allowed = float(budget.expand_as(error).flatten()[worst])
    explained = f"rounding explains {allowed:.2e}" if allowed else "none is due"
    return InvariantResult(
        name=name,
        verdict="broken" if used > 1 else "held",
        detail=f"{tap}: {what}, by {largest:.2e} at {list(place)}, where {explained}",
        where=tap,
        place=place,
        error=largest,
        budget=allowed,
        used=used,
    )


def _first(name: str, results: Iterable[InvariantResult], told: str) -> InvariantResult:
    """The first that is broken; else the one nearest to its budget, told in few words."""
    held = []
    for result in results:
        if result.verdict == "broken":
            return result
        held.append(result)
    nearest = merge_invariants(held)
    amount = "exactly" if nearest.error == 0 else f"within rounding ({nearest.used:.2f} of it, at {nearest.where})"
    return InvariantResult(
        name=name,
        verdict="held",
        detail=f"{told}, {amount}",
        where=nearest.where,
        place=nearest.place,
        error=nearest.error,
        budget=nearest.budget,
        used=nearest.used,
    )
