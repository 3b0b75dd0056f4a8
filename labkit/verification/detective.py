"""Stage results, as the walk comes to them -> findings, and what this prompt could have shown.

A site is replayed where its own operation is wrong, or where its errors are larger than a clean run's of the same
dtype though each lies within its budget: some faults show in the pattern of errors only.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from labkit.verification.chain import Stage, build_chain, recorded_inputs
from labkit.verification.finding import Finding, misshapen, non_finite
from labkit.verification.hypotheses import HYPOTHESES, Hypothesis, Scene, site_of, site_taps
from labkit.verification.pieces import View
from labkit.verification.precision import unit_roundoff
from labkit.verification.replay import MAX_SPAN, Replay
from labkit.verification.verdict import StageResult

LONG_SPAN = 6
"""Stages between recorded taps above which mistakes are rehearsed in the first and the last block only."""

SUSPICIOUS = 1.3
"""Times a clean run's root mean square error, from which on a site is replayed although no element is out of budget."""


@dataclass(frozen=True)
class Coverage:
    """How large each mistake's effect would have been on these prompts, stage by stage; up to 1 it could not be seen."""

    effects: Mapping[str, Mapping[str, float]]
    """Mistake -> stage it can be made at -> the size of its effect there, in budgets (NaN where it was not rehearsed);
    no stage where there is no room for it. A mistake in c_attn stands at q."""

    @property
    def seen(self) -> tuple[str, ...]:
        """Mistakes that this run would have shown at every stage they were rehearsed at."""
        return tuple(name for name in self.effects if self.stages_seen(name) and not self.stages_unseen(name))

    @property
    def partly(self) -> tuple[str, ...]:
        """Mistakes that this run would have shown at some stages and not at others."""
        return tuple(name for name in self.effects if self.stages_seen(name) and self.stages_unseen(name))

    @property
    def unseen(self) -> tuple[str, ...]:
        """Mistakes that this run could not have shown at any stage."""
        return tuple(name for name in self.effects if not self.stages_seen(name) and name not in self.untried)

    @property
    def untried(self) -> tuple[str, ...]:
        """Mistakes that were rehearsed at none of the stages they can be made at."""
        return tuple(name for name, stages in self.effects.items() if stages and all(map(math.isnan, stages.values())))

    @property
    def skipped(self) -> tuple[str, ...]:
        """Stages at which mistakes were not rehearsed: too many of them lie between recorded ones."""
        every = (
            stage for by_stage in self.effects.values() for stage, effect in by_stage.items() if math.isnan(effect)
        )
        return tuple(dict.fromkeys(every))

    def stages_seen(self, name: str) -> tuple[str, ...]:
        """The stages at which a mistake would have shown."""
        return tuple(stage for stage, effect in self.effects[name].items() if effect > 1)

    def stages_unseen(self, name: str) -> tuple[str, ...]:
        """The stages at which a mistake could be made and would not have shown."""
        return tuple(stage for stage, effect in self.effects[name].items() if effect <= 1)

    @classmethod
    def merged(cls, parts: Sequence["Coverage"]) -> "Coverage":
        """The best of several prompts, stage by stage."""
        effects: dict[str, dict[str, float]] = {}
        for part in parts:
            for name, by_stage in part.effects.items():
                best = effects.setdefault(name, {})
                for stage, effect in by_stage.items():
                    best[stage] = effect if math.isnan(effect) else max(effect, best.get(stage, 0.0))
        return cls(effects)


class Detective:
    """Looks at each site once all its taps are judged."""

    def __init__(
        self,
        scene: Scene,
        hypotheses: Sequence[Hypothesis] = HYPOTHESES,
        *,
        coverage: Literal["measure", "skip"] = "measure",
    ) -> None:
        """``coverage``: whether the effect of every mistake is measured at each site that is looked at."""
        self._hypotheses = hypotheses
        self.scene = scene
        self.findings: list[Finding] = []
        self._covers = coverage == "measure"
        self._effects: dict[tuple[str, str], float] = {}
        self._skipped: set[str] = set()
        self._not_finite: set[str] = set()

    def look(
        self, results: Mapping[str, StageResult], clean: Mapping[str, StageResult], views: Sequence[View] = ()
    ) -> Finding | None:
        """Look at one site: the results of its recorded taps, of the candidate and of a clean run.

        ``views``: parts of a large scene to replay on, in turn until the fault is named (default: the whole scene).
        """
        bad = next((result for result in results.values() if result.cause in ("shape", "non-finite")), None)
        unusable = {tap for tap, result in results.items() if result.cause == "shape"}
        self._not_finite.update(tap for tap, result in results.items() if result.cause == "non-finite")
        finding = self._replay_site(results, clean, views) if bad is None else self._defect(bad)
        self.findings += [] if finding is None else [finding]
        if unusable:  # nothing can be run on it: what comes after is looked at as if it were not there
            self.scene = replace(self.scene, candidate=_Without(self.scene.candidate, unusable))
        return finding

    def _replay_site(
        self, results: Mapping[str, StageResult], clean: Mapping[str, StageResult], views: Sequence[View]
    ) -> Finding | None:
        wrong = [tap for tap, result in results.items() if result.cause == "local"]
        first, scenes = wrong[0] if wrong else next(iter(results)), self._scenes(views)
        if self._covers:
            self._rehearse(Replay(scenes[0], self._hypotheses), first)
        finding = None
        if self._worth_replaying(results, clean):
            for scene in scenes:
                finding = Replay(scene, self._hypotheses).explain(first)
                if not wrong or (finding is not None and finding.candidates):
                    break
        return finding

    def _rehearse(self, replay: Replay, where: str) -> None:
        """Measure what each mistake would do here; of long spans, whose stages run anew for each, in two blocks only."""
        covered = replay.covered(where)
        if len(covered) > (MAX_SPAN if self._at_an_end(where) else LONG_SPAN):
            self._skipped.update(covered)
            return
        for place, effect in replay.visible(where).items():
            self._effects[place] = max(effect, self._effects.get(place, 0.0))

    def _at_an_end(self, tap: str) -> bool:
        return not tap.startswith("h.") or self.scene.block(tap) in (0, self.scene.config.n_layer - 1)

    def _scenes(self, views: Sequence[View]) -> list[Scene]:
        whole = self.scene
        return [
            whole
            if view.inputs is whole.inputs
            else replace(
                whole,
                stages=build_chain(whole.config, whole.weights, view.inputs),
                inputs=view.inputs,
                candidate=view.taps(whole.candidate),
            )
            for view in views
        ] or [whole]

    def _worth_replaying(self, results: Mapping[str, StageResult], clean: Mapping[str, StageResult]) -> bool:
        wrong = any(result.cause == "local" for result in results.values())
        if wrong or unit_roundoff(self.scene.precision.compute) > unit_roundoff(torch.float32):
            return True  # in a narrow dtype engines differ so much in their rounding that a clean run says little
        return any(result.local_rms > SUSPICIOUS * clean[tap].local_rms for tap, result in results.items())

    def _defect(self, result: StageResult) -> Finding | None:
        stage, candidate = self.scene.stages[result.name], self.scene.candidate
        if result.cause == "shape":
            shapes = {tap for finding in self.findings for tap in finding.span if finding.kind != "non-finite"}
            if not shapes & set(stage.inputs):
                return misshapen(self.scene, result.name, self._shape(result.name))
        elif self._not_finite.isdisjoint(recorded_inputs(stage, self.scene.stages, candidate)):
            return non_finite(self.scene, result.name, result.worst)
        return None

    def _shape(self, tap: str) -> tuple[int, ...]:
        config, (batch, pos) = self.scene.config, self.scene.inputs.ids.shape
        heads, square = (batch, config.n_head, pos, config.head_dim), (batch, config.n_head, pos, pos)
        stage = tap.split(".", 2)[2] if tap.startswith("h.") else tap
        if stage in ("attn.q", "attn.k", "attn.v", "attn.z"):
            return heads
        if stage in ("attn.scores", "attn.pattern"):
            return square
        width = {"logits": config.vocab_size, "mlp.pre": config.inner, "mlp.post": config.inner}
        return (batch, pos, width.get(stage, config.n_embd))

    @property
    def coverage(self) -> Coverage:
        """What the sites looked at could have shown; where none was, a mistake that has room there has no effect."""
        unread = replace(self.scene, candidate={})
        effects: dict[str, dict[str, float]] = {each.name: {} for each in self._hypotheses if not each.fitted}
        if not self._covers:
            return Coverage(effects)
        measured = {tap for _, tap in self._effects}
        for tap in sites(self.scene.stages):
            for each in self._hypotheses:
                if each.fitted or each.site != site_of(tap):
                    continue
                if (each.name, tap) in self._effects:
                    effects[each.name][tap] = self._effects[each.name, tap]
                elif (each.recorded_only and tap not in self.scene.candidate) or (
                    tap not in measured and each.variants(unread, tap)
                ):
                    effects[each.name][tap] = math.nan if tap in self._skipped else 0.0
        return Coverage(effects)


class _Without(Mapping[str, Tensor]):
    """Recorded taps but for some, read when they are asked for."""

    def __init__(self, taps: Mapping[str, Tensor], left_out: Collection[str]) -> None:
        self._taps = taps
        self._left_out = left_out

    def __getitem__(self, name: str) -> Tensor:
        if name in self._left_out:
            raise KeyError(name)
        return self._taps[name]

    def __contains__(self, name: object) -> bool:
        return name not in self._left_out and name in self._taps

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._taps if name not in self._left_out)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def last_of_site(tap: str, present: set[str]) -> bool:
    """Whether ``tap`` is the last recorded tap of its site.

    >>> last_of_site("h.0.attn.k", {"h.0.attn.q", "h.0.attn.k"})
    True
    """
    return [each for each in site_taps(tap) if each in present][-1] == tap


def sites(stages: Mapping[str, Stage]) -> tuple[str, ...]:
    """The first tap of every site."""
    return tuple(tap for tap in stages if site_taps(tap)[0] == tap)
