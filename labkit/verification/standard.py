"""What every candidate is held against: transformers' model of one checkpoint, its truth and its rounding.

Two walks down the stages. The first measures the floor: transformers in the engine's dtype, in two summation orders,
beside its float64 truth. The second judges the candidate, with a third order as the control. Both forget each stage
as soon as no later one needs it.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.config import GPT2Config
from labkit.verification.agreement import Agreement, agree, merge_agreement
from labkit.verification.budget import Expected
from labkit.verification.chain import Inputs, Stage, build_chain
from labkit.verification.controls import Controls, ControlWalk, Only
from labkit.verification.orders import Order, renumbered
from labkit.verification.pieces import Piece, pieces_of
from labkit.verification.precision import Precision
from labkit.verification.reference import KeyOrder, capture, load_reference, parameters_of
from labkit.verification.streams import Forward, Window, last_use, recorded_inputs, streamed
from labkit.verification.verdict import Floor, StageResult, Truth, merge_results, true_stage, weigh

FLOOR_ORDER = 1
CONTROL_ORDER = 2
"""Seeds of the summation orders: one measures the floor beside the plain order, the other is kept for the control."""


@dataclass(frozen=True)
class Case:
    """One prompt, judged."""

    stages: tuple[StageResult, ...]
    controls: Controls
    agreement: Agreement | None
    """None where the candidate recorded no logits."""
    explained: float
    """The largest logit error that rounding explains."""


class Standard:
    """transformers' model of one checkpoint, in float64 on the weights as declared, and in the dtype under test."""

    def __init__(self, folder: Path, config: GPT2Config, precision: Precision) -> None:
        self.config = config
        self.precision = precision
        self.truth_model = load_reference(folder, weight_dtype=precision.weight, config=config)
        self.weights = parameters_of(self.truth_model)
        self._folder = folder

    def reference(self) -> Any:
        """transformers' model in the dtype under test, loaded anew: it is not kept beside the truth."""
        precision = self.precision
        return load_reference(self._folder, dtype=precision.compute, weight_dtype=precision.weight, config=self.config)

    def judge(self, candidate: Mapping[str, Tensor] | Forward, inputs: Inputs) -> Case:
        """Judge every stage that ``candidate`` (recorded taps, or a forward to run) has."""
        stages = build_chain(self.config, self.weights, inputs)
        with ExitStack() as stack, torch.inference_mode():
            floor = self._measure_floor(stages, inputs)
            runs = (self._truth_run(inputs), self._reference_run(inputs, CONTROL_ORDER))
            truth_taps, clean = stack.enter_context(streamed(stages, *runs))
            if not isinstance(candidate, Mapping):
                (candidate,) = stack.enter_context(streamed(stages, candidate))
            return self._walk(stages, floor, truth_taps, clean, candidate, inputs)

    def _walk(
        self,
        stages: Mapping[str, Stage],
        floor: Mapping[str, Floor],
        truth_taps: Window,
        clean: Window,
        candidate: Mapping[str, Tensor],
        inputs: Inputs,
    ) -> Case:
        present = {tap for tap in stages if tap in candidate}
        truth, controls, done = Truth(), ControlWalk(floor), last_use(stages, present)
        control = Only(clean, present)
        results, agreements, explained = [], [], 0.0
        for tap, stage in stages.items():
            judged = []
            for piece in self._pieces(stage, stages, present, inputs):
                expected = self._true_stage(stage, truth_taps, truth, piece)
                if tap in present:
                    rest = (expected, floor[tap], piece.inputs, self.precision)
                    judged.append(weigh(stage, stages, piece.taps(candidate), *rest).verdict())
                    controls.check(weigh(stage, stages, piece.taps(control), *rest))
                if tap == "logits":
                    explained = max(explained, float(floor[tap].budget(expected).max()))
                    agreements += [agree(piece.taps(candidate)[tap], expected.output)] if tap in present else []
            results += [merge_results(judged)] if judged else []
            _forget(done[tap], truth, truth_taps, clean, candidate)
        return Case(
            tuple(results), controls.summary(truth), merge_agreement(agreements) if agreements else None, explained
        )

    def _measure_floor(self, stages: Mapping[str, Stage], inputs: Inputs) -> dict[str, Floor]:
        truth, done, floor = Truth(), last_use(stages, set(stages)), {}
        runs = (self._reference_run(inputs, None), self._reference_run(inputs, FLOOR_ORDER))
        with streamed(stages, self._truth_run(inputs), *runs) as (truth_taps, *windows):
            for tap, stage in stages.items():
                shares = []
                for piece in self._pieces(stage, stages, set(stages), inputs):
                    expected = self._true_stage(stage, truth_taps, truth, piece)
                    values = [piece.taps(window)[tap] for window in windows]
                    shares.append(Floor.measure(tap, expected, values, piece.inputs).share)
                floor[tap] = Floor(max(shares))
                _forget(done[tap], truth, truth_taps, *windows)
        return floor

    def _pieces(self, stage: Stage, stages: Mapping[str, Stage], present: set[str], inputs: Inputs) -> list[Piece]:
        return pieces_of(stage, recorded_inputs(stage, stages, present), inputs, self.config.vocab_size)

    def _true_stage(self, stage: Stage, taps: Mapping[str, Tensor], truth: Truth, piece: Piece) -> Expected:
        part = piece.truth(truth)
        expected = true_stage(stage, piece.taps(taps), part, piece.inputs, self.precision)
        truth.chain_error = max(truth.chain_error, part.chain_error)
        return expected

    def _truth_run(self, inputs: Inputs) -> Forward:
        return _forward(self.truth_model, inputs)

    def _reference_run(self, inputs: Inputs, seed: int | None) -> Forward:
        def run(record: Callable[[str, Tensor], None]) -> None:
            model = self.reference()
            if seed is None:
                _forward(model, inputs)(record)
                return
            order = Order.of(model, seed)
            model = renumbered(model, order)  # the original is dropped: one copy at a time
            _forward(model, inputs, order.key_order)(lambda tap, value: record(tap, order.restore(tap, value)))

        return run


def _forward(model: Any, inputs: Inputs, key_order: KeyOrder = "forward") -> Forward:
    return lambda record: capture(
        model,
        inputs.ids,
        attention_mask=inputs.attention_mask,
        position_ids=inputs.position_ids,
        record=record,
        key_order=key_order,
    )


def _forget(names: set[str], truth: Truth, *windows: Mapping[str, Tensor]) -> None:
    truth.forget(names)
    for window in windows:
        if isinstance(window, Window):
            window.forget(names)
