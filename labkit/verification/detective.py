"""Stage results, as the walk comes to them -> findings, and what this prompt could have shown.

A site is replayed where its own operation is wrong, or where its errors are larger than a clean run's of the same
dtype though each lies within its budget: some faults show in the pattern of errors only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labkit.verification.chain import Stage, build_chain
from labkit.verification.hypotheses import HYPOTHESES, Hypothesis, Scene, site_taps
from labkit.verification.pieces import View
from labkit.verification.precision import unit_roundoff
from labkit.verification.replay import Finding, Replay, misshapen, non_finite
from labkit.verification.verdict import StageResult

SUSPICIOUS = 1.3
"""Times a clean run's root mean square error, from which on a site is replayed although no element is out of budget."""


@dataclass(frozen=True)
class Coverage:
    """How large each mistake's effect would have been on these prompts, in budgets; up to 1 it could not be seen."""

    effects: Mapping[str, float]
    places: Mapping[str, str]
    """Where the effect would have been largest."""

    @property
    def seen(self) -> tuple[str, ...]:
        """Mistakes that this run could have shown."""
        return tuple(name for name, effect in self.effects.items() if effect > 1)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Mistakes that this run could not have shown."""
        return tuple(name for name, effect in self.effects.items() if effect <= 1)

    @classmethod
    def merged(cls, parts: Sequence["Coverage"]) -> "Coverage":
        """The best of several prompts."""
        effects: dict[str, float] = {}
        places: dict[str, str] = {}
        for part in parts:
            for name, effect in part.effects.items():
                if effect >= effects.get(name, -1.0):
                    effects[name], places[name] = effect, part.places[name]
        return cls(effects, places)


class Detective:
    """Looks at each site once all its taps are judged."""

    def __init__(
        self,
        scene: Scene,
        hypotheses: Sequence[Hypothesis] = HYPOTHESES,
        *,
        cover_blocks: Sequence[int] | None = None,
    ) -> None:
        """``cover_blocks``: the blocks whose sites count for coverage (default: the first and the last; none: no coverage)."""
        self._hypotheses = hypotheses
        self.scene = scene
        self.findings: list[Finding] = []
        self._cover = {0, scene.config.n_layer - 1} if cover_blocks is None else set(cover_blocks)
        self._effects: dict[str, float] = dict.fromkeys((h.name for h in hypotheses if not h.fitted), 0.0)
        self._places: dict[str, str] = dict.fromkeys(self._effects, "")

    def look(
        self, results: Mapping[str, StageResult], clean: Mapping[str, StageResult], views: Sequence[View] = ()
    ) -> Finding | None:
        """Look at one site: the results of its recorded taps, of the candidate and of a clean run.

        ``views``: parts of a large scene to replay on, in turn until the fault is named (default: the whole scene).
        """
        bad = next((result for result in results.values() if result.cause in ("shape", "non-finite")), None)
        finding = self._replay_site(results, clean, views) if bad is None else self._defect(bad)
        self.findings += [] if finding is None else [finding]
        return finding

    def _replay_site(
        self, results: Mapping[str, StageResult], clean: Mapping[str, StageResult], views: Sequence[View]
    ) -> Finding | None:
        wrong = [tap for tap, result in results.items() if result.cause == "local"]
        first, scenes = wrong[0] if wrong else next(iter(results)), self._scenes(views)
        if self._covers(first):
            for name, effect in Replay(scenes[0], self._hypotheses).visible(first).items():
                if effect > self._effects[name]:
                    self._effects[name], self._places[name] = effect, first
        finding = None
        if self._worth_replaying(results, clean):
            for scene in scenes:
                finding = Replay(scene, self._hypotheses).explain(first)
                if not wrong or (finding is not None and finding.candidates):
                    break
        return finding

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

    def _covers(self, tap: str) -> bool:
        return bool(self._cover) and (not tap.startswith("h.") or self.scene.block(tap) in self._cover)

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
        elif all(_finite(candidate[name]) for name in stage.inputs if name in candidate):
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
        """What the sites looked at could have shown."""
        return Coverage(self._effects, self._places)


def _finite(value: Tensor) -> bool:
    seen = value[~torch.isinf(value)] if value.dim() == 4 else value  # masked scores may be minus infinity
    return bool(torch.isfinite(seen).all())


def last_of_site(tap: str, present: set[str]) -> bool:
    """Whether ``tap`` is the last recorded tap of its site.

    >>> last_of_site("h.0.attn.k", {"h.0.attn.q", "h.0.attn.k"})
    True
    """
    return [each for each in site_taps(tap) if each in present][-1] == tap


def covering_taps(stages: Mapping[str, Stage]) -> tuple[str, ...]:
    """One tap of every site that counts for coverage: those of the first and the last block, and outside of blocks."""
    blocks = sorted({int(tap.split(".")[1]) for tap in stages if tap.startswith("h.")})
    kept = [tap for tap in stages if not tap.startswith("h.") or int(tap.split(".")[1]) in (blocks[0], blocks[-1])]
    return tuple(tap for tap in kept if site_taps(tap)[0] == tap)
