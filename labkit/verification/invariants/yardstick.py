"""How far rounding alone moves each tap of a checkpoint on given ids: the measure of every check by rerunning.

Along the chain of operations each one's own rounding and the uncertainty it inherits are propagated, on the engine's
own values where it shows them. That bound is statistical, so it is held against what is measured: where labkit's model
in the engine's dtype, run in two other orders of summation, reaches a good part of it, the budget is made larger.
"""

from collections import ChainMap
from dataclasses import replace

from torch import Tensor

from labkit.model import GPT2
from labkit.model.taps import tap_names
from labkit.verification.budget import Expected, expect
from labkit.verification.chain import Inputs, Stage, build_chain
from labkit.verification.invariants.engine import Taps, row_of
from labkit.verification.orders import Order
from labkit.verification.precision import FLOOR_FACTOR, Precision
from labkit.verification.verdict import Floor

ORDERS = (1, 2)
"""Seeds of the summation orders that measure the rounding."""


class Yardstick:
    """A checkpoint in one precision; ``budgets(ids, taps)`` says what rounding explains between two runs.

    ``ids`` [1, pos] are the row that the rounding is measured on.
    """

    def __init__(self, reference: GPT2, ids: Tensor, *, precision: Precision | None = None) -> None:
        self.config = reference.config
        self.precision = precision or Precision.of(reference.dtype)
        self.weights = {name: value.cpu().double() for name, value in reference.parameters_by_name.items()}
        self.weights.setdefault("lm_head.weight", self.weights["wte.weight"])
        self._plain = _on_cpu(reference)
        self._names = tap_names(self.config)
        self._scale = max(1.0, FLOOR_FACTOR * self._measured(ids))

    def chain(self, inputs: Inputs) -> dict[str, Stage]:
        """The operations on these inputs, in float64."""
        return build_chain(self.config, self.weights, inputs)

    def budgets(self, ids: Tensor, taps: Taps) -> dict[str, Tensor]:
        """Of one row [1, pos]: each of ``taps`` -> the difference between two runs that rounding explains.

        ``taps`` are the engine's own values; where it shows none, labkit's stand in.
        """
        values: Taps = taps
        if len(taps) < len(self._names):
            values = ChainMap(dict(taps), _taps_of(self._plain, ids))
        uncertain = self._propagated(ids, values)
        return row_of({tap: uncertain[tap].scaled(self._scale).expand(taps[tap].shape) for tap in taps}, 0)

    def _propagated(self, ids: Tensor, values: Taps) -> dict[str, Expected]:
        uncertain: dict[str, Expected] = {}
        for tap, stage in self.chain(Inputs(ids)).items():
            given = tuple(values[name].double() for name in stage.inputs)
            inherited = tuple(uncertain[name].budget for name in stage.inputs)
            uncertain[tap] = expect(stage, given, inherited, self.precision)
        return uncertain

    def _measured(self, ids: Tensor) -> float:
        """The largest share of the propagated bound by which runs in other orders of summation differ."""
        plain, inputs = _taps_of(self._plain, ids), Inputs(ids)
        others = [self._reordered(ids, seed) for seed in ORDERS]
        shares = []
        for tap, each in self._propagated(ids, plain).items():
            middle = replace(each, output=plain[tap].double())
            shares.append(Floor.measure(tap, middle, [other[tap] for other in others], inputs).share)
        return max(shares)

    def _reordered(self, ids: Tensor, seed: int) -> dict[str, Tensor]:
        """Every tap of the same function with its sums taken in another order."""
        config = self.config
        order = Order.draw(seed, n_embd=config.n_embd, n_head=config.n_head, n_inner=config.inner)
        renumbered = GPT2(config, order.renumber(dict(self._plain.parameters_by_name), config.n_head))
        return {name: order.restore(name, value) for name, value in _taps_of(renumbered, ids).items()}


def _on_cpu(model: GPT2) -> GPT2:
    """The model as it is on the CPU, with GPT-2's own operations."""
    return GPT2(model.config, {name: value.cpu() for name, value in model.parameters_by_name.items()})


def _taps_of(model: GPT2, ids: Tensor) -> dict[str, Tensor]:
    return model.run(ids, taps="all").taps
