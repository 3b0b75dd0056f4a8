"""Causality and padding from a trace alone: rows of one batch that begin alike must agree as far as they do.

Two rows with the same first tokens are one run with later tokens changed; where one of them is padded, the padding
must not show. Equal means within what rounding explains.
"""

from itertools import combinations

from torch import Tensor

from labkit.verification.budget import storage_uncertainty
from labkit.verification.chain import Inputs
from labkit.verification.invariants.engine import Taps, cut, row_of
from labkit.verification.invariants.rerun import result_of
from labkit.verification.invariants.result import InvariantResult, merge_invariants, not_applicable
from labkit.verification.invariants.sameness import sameness
from labkit.verification.invariants.yardstick import Yardstick


def alike_rows(taps: Taps, inputs: Inputs, yardstick: Yardstick, *, padded: bool) -> InvariantResult:
    """Every pair of rows that begin alike; ``padded``: the pairs of which one has more padding in front."""
    name = "padding" if padded else "causality"
    results = []
    starts = inputs.real.long().argmax(dim=1).tolist()  # each row's first token
    for a, b in combinations(sorted(range(len(starts)), key=starts.__getitem__), 2):
        shared = _shared(inputs, a, b, starts)
        if not shared or (starts[a] != starts[b]) != padded:
            continue
        expected, actual = (_without_padding(taps, row, starts[row], shared) for row in (a, b))
        ids = inputs.ids[a : a + 1, starts[a] : starts[a] + shared]  # [1, shared]
        result = sameness(actual, expected, _budgets(yardstick, ids, expected))
        results.append(result_of(name, result, f"rows {a} and {b} share their first {shared} tokens: "))
    if not results:
        more = " and are padded differently" if padded else ""
        return not_applicable(name, f"no two rows of the trace begin alike{more}")
    return merge_invariants(results)


def _shared(inputs: Inputs, a: int, b: int, starts: list[int]) -> int:
    """How many tokens two rows have in common at their beginning, padding not counted."""
    rows = [inputs.ids[row][inputs.real[row]][: inputs.ids.shape[1] - starts[row]] for row in (a, b)]  # each [pos]
    length = min(len(row) for row in rows)
    differs = (rows[0][:length] != rows[1][:length]).nonzero()  # [n, 1]
    return int(differs[0]) if len(differs) else length


def _without_padding(taps: Taps, row: int, start: int, length: int) -> dict[str, Tensor]:
    shown = [name for name in taps if name != "wpe"]  # the table's rows may be shown once for the batch
    return cut(row_of(taps, row, shown), start, start + length)


def _budgets(yardstick: Yardstick, ids: Tensor, taps: Taps) -> dict[str, Tensor]:
    """What rounding explains, and what storing in a narrower dtype adds."""
    budgets = cut(yardstick.budgets(ids, taps), 0, ids.shape[1])
    return {
        name: budget + storage_uncertainty(taps[name].double(), taps[name].dtype, yardstick.precision)
        for name, budget in budgets.items()
    }
