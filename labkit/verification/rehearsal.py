"""One prompt's truth, floor and clean run kept in memory, to judge many candidates against.

For models and prompts small enough: a kill matrix judges hundreds of planted faults on the same inputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.verification.budget import Expected
from labkit.verification.chain import Inputs, Stage
from labkit.verification.detective import Detective, last_of_site
from labkit.verification.finding import Finding
from labkit.verification.hypotheses import HYPOTHESES, Hypothesis, Scene, site_taps
from labkit.verification.standard import CONTROL_ORDER, Standard
from labkit.verification.verdict import Floor, StageResult, weigh


@dataclass(frozen=True)
class Rehearsal:
    """Everything that judging a candidate on one prompt needs."""

    standard: Standard
    inputs: Inputs
    stages: Mapping[str, Stage]
    expected: Mapping[str, Expected]
    floor: Mapping[str, Floor]
    cleared: Mapping[str, StageResult]
    """The results of a clean run."""

    @classmethod
    @torch.inference_mode()
    def prepare(cls, standard: Standard, inputs: Inputs) -> "Rehearsal":
        """Run transformers once in float64, twice for the floor, and once clean."""
        stages, expected, floor = standard.measure(inputs)
        clean = standard.capture_clean(inputs, CONTROL_ORDER)
        cleared = {
            tap: weigh(stage, stages, clean, expected[tap], floor[tap], inputs, standard.precision).verdict()
            for tap, stage in stages.items()
        }
        return cls(standard, inputs, stages, expected, floor, cleared)

    @torch.inference_mode()
    def judge(
        self, taps: Mapping[str, Tensor], *, hypotheses: Sequence[Hypothesis] = HYPOTHESES, base: "Judged | None" = None
    ) -> "Judged":
        """The result of every stage that was recorded, and what is wrong; stages equal to those of ``base`` are not redone."""
        precision, present = self.standard.precision, {tap for tap in self.stages if tap in taps}
        detective = Detective(self.scene(taps), hypotheses, coverage="skip")
        results: dict[str, StageResult] = {}
        for tap in self.stages:
            if tap not in present:
                continue
            if base is not None and _unchanged(self.stages[tap], taps, base.taps):
                results[tap] = base.results[tap]
                continue
            rest = (self.expected[tap], self.floor[tap], self.inputs, precision)
            results[tap] = weigh(self.stages[tap], self.stages, taps, *rest).verdict()
            if last_of_site(tap, present):
                site = [each for each in site_taps(tap) if each in present]
                detective.look({each: results[each] for each in site}, {each: self.cleared[each] for each in site})
        return Judged(taps, results, tuple(detective.findings))

    def scene(self, taps: Mapping[str, Tensor]) -> Scene:
        """What replays on a candidate's taps are made from."""
        return self.standard.scene(taps, self.inputs, self.stages)


@dataclass(frozen=True)
class Judged:
    """A candidate's taps, each stage's result, and what is wrong."""

    taps: Mapping[str, Tensor]
    results: Mapping[str, StageResult]
    findings: tuple[Finding, ...]


def _unchanged(stage: Stage, taps: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> bool:
    names = (*site_taps(stage.tap), *stage.inputs)
    return all(name in taps and name in base and torch.equal(taps[name], base[name]) for name in names)
