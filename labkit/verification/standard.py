"""What every candidate is held against: transformers' model of one checkpoint, its truth and its rounding.

Two walks down the stages. The first measures the floor: transformers in the engine's dtype, in two summation orders,
beside its float64 truth. The second judges the candidate, with a third order as the control. Both forget each stage
as soon as no later one needs it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.config import GPT2Config
from labkit.verification.agreement import Agreement, agree, merge_agreement
from labkit.verification.budget import Expected, compared, share_of
from labkit.verification.chain import Inputs, Stage, build_chain, recorded_inputs
from labkit.verification.controls import AsRecorded, Controls, ControlWalk
from labkit.verification.detective import Coverage, Detective, last_of_site
from labkit.verification.finding import Finding
from labkit.verification.hypotheses import HYPOTHESES, Hypothesis, Scene, ask_to_record, site_taps
from labkit.verification.memory import give_back
from labkit.verification.orders import Order, renumbered
from labkit.verification.pieces import Piece, pieces_of, views_of
from labkit.verification.precision import Precision
from labkit.verification.reference import KeyOrder, capture, load_reference, parameters_of
from labkit.verification.streams import Forward, Window, last_use, streamed, until_block_ends
from labkit.verification.threads import threads_for
from labkit.verification.verdict import (
    Floor,
    StageResult,
    Truth,
    merge_results,
    pooled,
    true_stage,
    true_values,
    weigh,
)

FLOOR_ORDER = 1
CONTROL_ORDER = 2
"""Seeds of the summation orders: one measures the floor beside the plain order, the other is kept for the control."""
LARGE_NUMEL = 1 << 23
"""Elements of the largest tap (64 MiB in float64) above which forwards do not run ahead of the walk."""


Look = Callable[[str, Piece, Expected, Sequence[Tensor]], None]
"""Shown a stage's tap, a piece of it, the truth there, and the values of other runs."""


@dataclass(frozen=True)
class Case:
    """One prompt, judged."""

    stages: tuple[StageResult, ...]
    controls: Controls
    agreement: Agreement | None
    """None where the candidate recorded no logits."""
    explained: float
    """The largest logit error that rounding explains."""
    findings: tuple[Finding, ...]
    coverage: Coverage


class Standard:
    """transformers' model of one checkpoint, in float64 on the weights as declared, and in the dtype under test."""

    def __init__(
        self, folder: Path, config: GPT2Config, precision: Precision, *, ask: Callable[[str], str] = ask_to_record
    ) -> None:
        """``ask``: how to come by the value of a tap that the candidate does not show, in words."""
        self._ask = ask
        self.config = config
        self.precision = precision
        self.truth_model = load_reference(folder, weight_dtype=precision.weight, config=config)
        self.weights = parameters_of(self.truth_model)
        self._folder = folder

    def reference(self) -> Any:
        """transformers' model in the dtype under test, loaded anew: it is not kept beside the truth."""
        precision = self.precision
        return load_reference(self._folder, dtype=precision.compute, weight_dtype=precision.weight, config=self.config)

    def in_precision(self, precision: Precision) -> "Standard":
        """The same checkpoint, held against in other dtypes."""
        return Standard(self._folder, self.config, precision, ask=self._ask)

    def scene(
        self, candidate: Mapping[str, Tensor], inputs: Inputs, stages: Mapping[str, Stage] | None = None
    ) -> Scene:
        """What a candidate's taps are replayed in; ``stages`` where they are built already."""
        chain = build_chain(self.config, self.weights, inputs) if stages is None else stages
        return Scene(self.config, self.weights, chain, inputs, self.precision, candidate, self._ask)

    def judge(
        self,
        candidate: Mapping[str, Tensor] | Forward,
        inputs: Inputs,
        *,
        hypotheses: Sequence[Hypothesis] = HYPOTHESES,
    ) -> Case:
        """Judge every stage that ``candidate`` (recorded taps, or a forward to run) has, and explain what is wrong."""
        stages = build_chain(self.config, self.weights, inputs)
        with ExitStack() as stack, torch.inference_mode(), threads_for(self.config):
            floor = self._measure_floor(stages, inputs)
            runs = (self._truth_run(inputs), self._reference_run(inputs, CONTROL_ORDER))
            ahead = not self._large(inputs)
            truth_taps, clean = stack.enter_context(streamed(stages, *runs, ahead=ahead))
            if not isinstance(candidate, Mapping):
                (candidate,) = stack.enter_context(streamed(stages, candidate, ahead=ahead))
            return self._walk(stages, floor, truth_taps, clean, candidate, inputs, hypotheses)

    def _walk(
        self,
        stages: Mapping[str, Stage],
        floor: Mapping[str, Floor],
        truth_taps: Window,
        clean: Window,
        candidate: Mapping[str, Tensor],
        inputs: Inputs,
        hypotheses: Sequence[Hypothesis],
    ) -> Case:
        present = {tap for tap in stages if tap in candidate}
        truth, controls, done = Truth(), ControlWalk(floor), last_use(stages, present)
        kept = until_block_ends(done)
        control = AsRecorded(clean, candidate, present)
        detective = Detective(self.scene(candidate, inputs, stages), hypotheses)
        large = self._large(inputs)
        results: dict[str, StageResult] = {}
        cleared: dict[str, StageResult] = {}
        agreements, explained = [], 0.0
        for tap, stage in stages.items():
            judged, passed, budgets = [], [], []
            pieces = self._pieces(stage, stages, present, inputs)
            for piece in pieces:
                expected = self._true_stage(stage, truth_taps, truth, piece)
                budgets += [] if tap in done[tap] else [expected.budget]
                if tap in present:
                    rest = (expected, floor[tap], piece.inputs, self.precision)
                    result = weigh(stage, stages, piece.taps(candidate), *rest).verdict()
                    judged.append(piece.placed(result, candidate[tap].shape))
                    passed.append(controls.check(weigh(stage, stages, piece.taps(control), *rest)))
                if tap == "logits":
                    budget = torch.where(compared(tap, piece.inputs), floor[tap].budget(expected), 0.0)
                    explained = max(explained, float(budget.max()))
                    real = piece.inputs.real  # [batch, pos]
                    if tap in present and judged[-1].cause != "shape" and bool(real.any()):
                        agreements.append(agree(piece.taps(candidate)[tap][real], expected.output[real]))
                if large:
                    give_back()
            if budgets:
                truth.keep(tap, budgets)
            if tap in present:
                results[tap], cleared[tap] = merge_results(judged), merge_results(passed)
                if last_of_site(tap, present):
                    site = [each for each in site_taps(tap) if each in present]
                    finding = detective.look(
                        {each: results[each] for each in site},
                        {each: cleared[each] for each in site},
                        views_of(pieces, judged, inputs, self.config.n_head),
                    )
                    if finding is not None and all(results[each].verdict == "same" for each in site):
                        results[finding.where] = replace(results[finding.where], verdict="differs", cause="pattern")
                    if large:
                        give_back()
            _forget(done[tap], truth, truth_taps, clean)
            _forget(kept[tap], truth, candidate)
        return Case(
            tuple(results.values()),
            controls.summary(truth),
            merge_agreement(agreements) if agreements else None,
            explained,
            tuple(detective.findings),
            detective.coverage,
        )

    def measure(self, inputs: Inputs) -> tuple[dict[str, Stage], dict[str, Expected], dict[str, Floor]]:
        """The chain, the true value of every stage with its uncertainty, and the floor, all kept in memory."""
        stages = build_chain(self.config, self.weights, inputs)
        floor = self._measure_floor(stages, inputs)
        return stages, true_values(stages, recorded(self._truth_run(inputs)), inputs, self.precision), floor

    def capture_clean(self, inputs: Inputs, seed: int) -> dict[str, Tensor]:
        """Every tap of transformers in the dtype under test, summed in the order of ``seed``."""
        return recorded(self._reference_run(inputs, seed))

    def effect(self, wrong: Forward, right: Forward, inputs: Inputs) -> dict[str, float]:
        """The most that two runs of an engine differ by at each stage, in the budget of the element concerned."""
        stages, shares = build_chain(self.config, self.weights, inputs), dict[str, float]()

        def look(tap: str, piece: Piece, expected: Expected, values: Sequence[Tensor]) -> None:
            moved = (values[0].double() - values[1].double()).abs()
            share = share_of(moved, floor[tap].budget(expected), compared(tap, piece.inputs))
            shares[tap] = max(shares.get(tap, 0.0), float(share.max()))

        with torch.inference_mode(), threads_for(self.config):
            floor = self._measure_floor(stages, inputs)
            self._walk_truth(stages, inputs, (wrong, right), look)
        return shares

    def _measure_floor(self, stages: Mapping[str, Stage], inputs: Inputs) -> dict[str, Floor]:
        parts: dict[str, list[Floor]] = {tap: [] for tap in stages}

        def look(tap: str, piece: Piece, expected: Expected, values: Sequence[Tensor]) -> None:
            parts[tap].append(Floor.measure(tap, expected, values, piece.inputs))

        runs = (self._reference_run(inputs, None), self._reference_run(inputs, FLOOR_ORDER))
        self._walk_truth(stages, inputs, runs, look)
        return pooled({tap: Floor.merged(each) for tap, each in parts.items()})

    def _walk_truth(self, stages: Mapping[str, Stage], inputs: Inputs, runs: Sequence[Forward], look: Look) -> None:
        """Show ``look`` every stage, piece by piece: its tap, the piece, the truth and the values of the runs."""
        truth, done, large = Truth(), last_use(stages, set(stages)), self._large(inputs)
        with streamed(stages, self._truth_run(inputs), *runs, ahead=not large) as (truth_taps, *windows):
            for tap, stage in stages.items():
                budgets = []
                for piece in self._pieces(stage, stages, set(stages), inputs):
                    expected = self._true_stage(stage, truth_taps, truth, piece)
                    budgets += [] if tap in done[tap] else [expected.budget]
                    look(tap, piece, expected, [piece.taps(window)[tap] for window in windows])
                    if large:
                        give_back()
                if budgets:
                    truth.keep(tap, budgets)
                _forget(done[tap], truth, truth_taps, *windows)

    def _large(self, inputs: Inputs) -> bool:
        """Whether one tap takes so much memory that the forwards had better wait for each other."""
        batch, pos = inputs.ids.shape
        return batch * pos * max(pos * self.config.n_head, self.config.vocab_size) > LARGE_NUMEL

    def _pieces(self, stage: Stage, stages: Mapping[str, Stage], present: set[str], inputs: Inputs) -> list[Piece]:
        needed = recorded_inputs(stage, stages, present)
        return pieces_of(stage, needed, inputs, heads=self.config.n_head, vocabulary=self.config.vocab_size)

    def _true_stage(self, stage: Stage, taps: Mapping[str, Tensor], truth: Truth, piece: Piece) -> Expected:
        budgets = piece.taps(truth.budgets)
        expected, off = true_stage(stage, piece.taps(taps), budgets, piece.inputs, self.precision)
        truth.chain_error = max(truth.chain_error, off)
        return expected

    def _truth_run(self, inputs: Inputs) -> Forward:
        return reference_forward(self.truth_model, inputs)

    def _reference_run(self, inputs: Inputs, seed: int | None) -> Forward:
        def run(record: Callable[[str, Tensor], None]) -> None:
            model = self.reference()
            if seed is None:
                reference_forward(model, inputs)(record)
                return
            order = Order.of(model, seed)
            model = renumbered(model, order)  # the original is dropped: one copy at a time
            reference_forward(model, inputs, order.key_order)(lambda tap, value: record(tap, order.restore(tap, value)))

        return run


def reference_forward(model: Any, inputs: Inputs, key_order: KeyOrder = "forward") -> Forward:
    """A forward of transformers' model on the inputs, handing over each tap."""
    return lambda record: capture(
        model,
        inputs.ids,
        attention_mask=inputs.attention_mask,
        position_ids=inputs.position_ids,
        record=record,
        key_order=key_order,
    )


def recorded(run: Forward) -> dict[str, Tensor]:
    """Every tap of a forward, kept."""
    taps: dict[str, Tensor] = {}
    run(taps.__setitem__)
    return taps


def _forget(names: set[str], truth: Truth, *windows: Mapping[str, Tensor]) -> None:
    truth.forget(names)
    for window in windows:
        if isinstance(window, Window):
            window.forget(names)
