"""Invariants that are asked by running the engine again: causality, prefix, KV cache, batch, padding.

Each takes one row of ids [1, pos] and compares one row's taps with another run's: bit for bit where an engine that
repeats itself computes the same shapes, else within what rounding explains (a ``Yardstick``).
"""

import torch
from torch import Tensor

from labkit.verification.invariants.engine import Engine, Taps, cut, row_of
from labkit.verification.invariants.result import InvariantResult, not_applicable
from labkit.verification.invariants.sameness import Sameness, sameness
from labkit.verification.invariants.yardstick import Yardstick
from labkit.words import counted

PADDING = 3
"""Positions of padding put in front of a row."""


def causality(engine: Engine, ids: Tensor, yardstick: Yardstick) -> InvariantResult:
    """Changing token j moves nothing before j; asked at the second, the middle and the last token."""
    pos, vocab = ids.shape[1], yardstick.config.vocab_size
    if pos < 2 or vocab < 2:
        return not_applicable("causality", "it takes two tokens and a vocabulary of two")
    base, again = row_of(engine.run(ids), 0), row_of(engine.run(ids), 0)
    repeats = sameness(again, base, None).bitwise
    explained = None if repeats else yardstick.budgets(ids, base)
    places, moved = sorted({1, pos // 2, pos - 1}), False
    results = []
    for j in places:
        changed = ids.clone()
        changed[0, j] = (changed[0, j] + 1) % vocab
        taps = row_of(engine.run(changed), 0)
        moved = moved or not sameness(cut(taps, j, pos), cut(base, j, pos), None).bitwise
        result = sameness(cut(taps, 0, j), cut(base, 0, j), explained and cut(explained, 0, j))
        if result.used > 1:
            return result_of("causality", result, f"changing token {j} of {pos} moves what comes before it: ")
        results.append(result)
    if not moved:
        return not_applicable("causality", "changing a token moved nothing at all: the engine does not read its ids")
    worst = max(results, key=lambda each: each.used)
    return result_of("causality", worst, f"before token {', '.join(map(str, places))} of {pos}, when it is changed, ")


def prefix(engine: Engine, ids: Tensor, yardstick: Yardstick) -> InvariantResult:
    """The run of the first tokens alone equals the first positions of the run of all."""
    pos = ids.shape[1]
    if pos < 2:
        return not_applicable("prefix", "it takes two tokens")
    full = row_of(engine.run(ids), 0)
    budgets, results = yardstick.budgets(ids, full), []
    for stop in sorted({1, pos // 2, pos - 1}):
        first = cut(row_of(engine.run(ids[:, :stop]), 0), 0, stop)
        result = sameness(first, cut(full, 0, stop), cut(budgets, 0, stop))
        if result.used > 1:
            return result_of("prefix", result, f"the first {stop} of {pos} tokens run alone: ")
        results.append(result)
    return result_of("prefix", max(results, key=lambda each: each.used), "first tokens run alone: ")


def cache(engine: Engine, ids: Tensor, yardstick: Yardstick) -> InvariantResult:
    """One position at a time with the KV cache equals all at once."""
    if engine.cached is None:
        return not_applicable("cache", "the engine was given without a cached run")
    if ids.shape[1] < 2:
        return not_applicable("cache", "it takes two tokens")
    full = row_of(engine.run(ids), 0)
    steps = row_of(engine.cached(ids), 0)
    whole = cut(full, 0, ids.shape[1])
    result = sameness(steps, whole, cut(yardstick.budgets(ids, full), 0, ids.shape[1]))
    return result_of("cache", result, f"{ids.shape[1]} tokens one at a time with the KV cache: ")


def batch(engine: Engine, ids: Tensor, yardstick: Yardstick) -> InvariantResult:
    """A row gives the same in a batch of unlike rows as alone."""
    rows = torch.cat([ids, ids.flip(1), (ids + 1) % yardstick.config.vocab_size])  # [batch, pos]
    together, results = engine.run(rows), []
    for place, row in enumerate(torch.split(rows, 1)):
        alone = row_of(engine.run(row), 0)
        result = sameness(row_of(together, place), alone, yardstick.budgets(row, alone))
        if result.used > 1:
            return result_of("batch", result, f"row {place} of a batch of {len(rows)} beside the same row alone: ")
        results.append(result)
    worst = max(results, key=lambda each: each.used)
    return result_of("batch", worst, f"{len(rows)} rows in one batch, each as if alone: ")


def padding(engine: Engine, ids: Tensor, yardstick: Yardstick) -> InvariantResult:
    """A row gives the same with padding in front of it, beside an unpadded row, as alone."""
    if engine.masked is None:
        return not_applicable("padding", "the engine was given without an attention mask")
    config = yardstick.config
    room = min(PADDING, config.n_positions - 1)
    if room < 1:
        return not_applicable("padding", "the model holds one position")
    row = ids[:, : config.n_positions - room]  # [1, pos]
    pos = row.shape[1]
    filler = (row[:, :1] + 1).expand(1, room) % config.vocab_size  # [1, room]
    other = torch.cat([filler, row], dim=1).flip(1)  # [1, room + pos]
    rows = torch.cat([other, torch.cat([filler, row], dim=1)])  # [2, room + pos]
    mask = torch.ones_like(rows)  # [2, room + pos]
    mask[1, :room] = 0
    alone = row_of(engine.run(row), 0)
    padded = _without_table(row_of(engine.masked(rows, mask), 1))
    whole, explained = cut(alone, 0, pos), cut(yardstick.budgets(row, alone), 0, pos)
    result = sameness(cut(padded, room, room + pos), whole, explained)
    return result_of(
        "padding", result, f"{counted(pos, 'token')} with {counted(room, 'position')} of padding in front: "
    )


def _without_table(taps: Taps) -> dict[str, Tensor]:
    """wpe is left out, since an engine may show the table's rows once for the batch; embed has what was added."""
    return {name: value for name, value in taps.items() if name != "wpe"}


def result_of(name: str, result: Sameness, told: str) -> InvariantResult:
    """The result of one comparison, ``told`` first."""
    return InvariantResult(
        name=name,
        verdict="broken" if result.used > 1 else "held",
        detail=told + result.describe(),
        where=result.where,
        place=result.place,
        error=result.error,
        budget=result.budget,
        used=result.used,
    )
