"""Mistakes on the way in: token table, position table, their sum."""

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.verification.chain import Stage
from labkit.verification.hypotheses.scene import Hypothesis, Scene, Variants
from labkit.verification.operations import Add, Gather, Rounding


@dataclass(frozen=True)
class Scaled(Add):
    """The sum with factors of its own on the two streams."""

    first: float
    second: float

    def compute(self, *inputs: Tensor) -> Tensor:
        return self.first * inputs[0] + self.second * inputs[1]  # [batch, pos, n_embd]

    def rounding(self, output: Tensor, *inputs: Tensor) -> Rounding:
        size = abs(self.first) * inputs[0].abs() + abs(self.second) * inputs[1].abs()
        return Rounding(torch.zeros_like(output), 1, 2 * size)  # one rounding for each of two additions


@dataclass(frozen=True)
class ScaledGather(Gather):
    """Rows of a table times a factor, which rounds."""

    factor: float

    def compute(self, *inputs: Tensor) -> Tensor:
        return self.factor * super().compute(*inputs)

    def rounding(self, output: Tensor, *inputs: Tensor) -> Rounding:
        return Rounding(torch.zeros_like(output), 1, 2 * output.abs())


def _table_rows(scene: Scene, tap: str, table: Tensor, rows: Tensor) -> Variants:
    last = table.shape[0] - 1
    return {tap: scene.changed(tap, Gather(table, rows.clamp(0, last)))}


def _ids_off_by_one(scene: Scene, tap: str) -> Variants:
    return _table_rows(scene, tap, scene.weights["wte.weight"], scene.inputs.ids + 1)


def _wte_scaled(scene: Scene, tap: str) -> Variants:
    operation = ScaledGather(scene.weights["wte.weight"], scene.inputs.ids, scene.config.n_embd**0.5)
    return {tap: scene.changed(tap, operation)}


def _positions(scene: Scene, tap: str, rows: Tensor) -> Variants:
    return _table_rows(scene, tap, scene.weights["wpe.weight"], rows)


def _positions_ignore_padding(scene: Scene, tap: str) -> Variants:
    if scene.inputs.position_ids is None:
        return {}
    plain = torch.arange(scene.inputs.ids.shape[1]).expand_as(scene.inputs.ids)  # [batch, pos]
    return _positions(scene, tap, plain)


def _sum(first: float, second: float, scene: Scene, tap: str) -> dict[str, Stage]:
    return {tap: scene.changed(tap, Scaled(first, second))}


HYPOTHESES = (
    Hypothesis(
        name="ids-off-by-one",
        site="wte",
        cause="each token is looked up one row too far down in wte",
        variants=_ids_off_by_one,
    ),
    Hypothesis(
        name="wte-scaled",
        site="wte",
        cause="token embeddings are multiplied by sqrt(n_embd)",
        variants=_wte_scaled,
    ),
    Hypothesis(
        name="positions-off-by-one",
        site="wpe",
        cause="positions start at 1 instead of 0",
        variants=lambda scene, tap: _positions(scene, tap, scene.inputs.positions + 1),
    ),
    Hypothesis(
        name="positions-wrap-64",
        site="wpe",
        cause="positions start again at 0 after 64",
        variants=lambda scene, tap: _positions(scene, tap, scene.inputs.positions % 64),
    ),
    Hypothesis(
        name="positions-ignore-padding",
        site="wpe",
        cause="positions count padding on the left",
        variants=_positions_ignore_padding,
    ),
    Hypothesis(
        name="wpe-missing",
        site="embed",
        cause="position embeddings are not added",
        variants=lambda scene, tap: _sum(1.0, 0.0, scene, tap),
    ),
    Hypothesis(
        name="wpe-twice",
        site="embed",
        cause="position embeddings are added twice",
        variants=lambda scene, tap: _sum(1.0, 2.0, scene, tap),
    ),
)
