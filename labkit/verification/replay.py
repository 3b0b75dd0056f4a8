"""A stage that is wrong -> the mistake that reproduces the candidate, if exactly one does.

Every hypothesis of the site, and the right operation with them, is run in float64 on the candidate's own inputs and
held against what the candidate recorded. A cause is named when one hypothesis stays within rounding and explains the
data better than all others: the noise is not known beforehand, so fits are compared by their residuals' root mean
square, as a likelihood ratio over all elements. Named constants come before values that were solved for.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.verification.budget import as_computed, as_stored, compared, share_of, storage_uncertainty
from labkit.verification.chain import Stage, unrecorded
from labkit.verification.finding import CauseKind, Finding
from labkit.verification.hypotheses import HYPOTHESES, Hypothesis, Scene, Variants, site_of, site_taps
from labkit.verification.telling_apart import Apart, tell_apart, tied_at
from labkit.verification.trace_next import choose_next
from labkit.verification.verdict import expect_locally

DECISIVE = 12.0
"""Natural-log likelihood ratio above which one explanation is taken over another: odds of 160,000 to one."""

SUBTLE = 60.0
"""The same, where no element exceeds its budget and a hypothesis must win over 'no fault' by the pattern of errors."""

SLOPE_SLACK = 0.25
"""A fault below the budget must be of the hypothesis's own size: regression slope 1 to within this much."""

RESIDUAL_FLOOR = 1e-9
"""Residuals this far below rounding, in budgets, carry no information."""

MAX_SPAN = 30
"""Stages between recorded taps (two blocks) up to which mistakes are replayed: each replay runs all of them again."""

MASKED = -1e3
"""Scores below this are a mask's: no query and key of GPT-2 come near it."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How well one explanation reproduces what the candidate recorded at one site."""

    name: str
    home: str
    """The stage at which the mistake would have been made."""
    share: float
    """The largest residual over its budget: within rounding up to 1."""
    max_error: float
    rms: float
    """Root mean square of residual over budget."""
    effect: float
    """The largest difference from the right operation's output, in budgets: what the prompt lets this mistake show."""
    slope: float
    """How much of the hypothesis's difference the candidate shows: 1 all of it, 0 none."""
    independent: int
    """Errors that do not depend on each other: elements, but for a norm its rows, which share mean and variance."""
    fitted: bool
    telling: float
    """How much likelier than the right operation this is, as a natural logarithm, by the elements that tell them apart."""

    def better(self, right: "Fit") -> bool:
        """Whether this explains the data better than the right operation does, by a margin."""
        return self.share <= right.share / 2 or self.log_odds(right) >= DECISIVE

    def log_odds(self, other: "Fit") -> float:
        """How much likelier than ``other`` this explanation is, as a natural logarithm."""
        return self.independent * math.log(max(other.rms, RESIDUAL_FLOOR) / max(self.rms, RESIDUAL_FLOOR))


NULL = Hypothesis(name="no fault", site="", cause="the operation is right", variants=lambda _scene, _tap: {})


class Replay:
    """Replays on one scene; the right operation's result at each site is computed once."""

    def __init__(self, scene: Scene, hypotheses: Sequence[Hypothesis] = HYPOTHESES) -> None:
        self.scene = scene
        self._by_site: dict[str, list[Hypothesis]] = {}
        for hypothesis in hypotheses:
            self._by_site.setdefault(hypothesis.site, []).append(hypothesis)

    def fits(self, where: str) -> list[Fit]:
        """The right operation first, then every hypothesis about the stages that ``where`` covers."""
        observed = [tap for tap in site_taps(where) if tap in self.scene.candidate]
        right = self._residuals(observed, {})
        fits = [self._fit(NULL, where, right, right)]
        for hypothesis, tap, variants in self._replayed(where):
            home = where if where in site_taps(tap) else tap
            if self._contradicted(variants, observed):
                continue
            fits.append(self._fit(hypothesis, home, self._residuals(observed, variants), right))
        return fits

    def _contradicted(self, variants: Variants, observed: Sequence[str]) -> bool:
        """Whether a recorded tap that is not judged here, but that the mistake would have changed, is as it should not be."""
        others = [tap for tap in variants if tap in self.scene.candidate and tap not in observed]
        if not others:
            return False
        here = self._residuals(others, variants)
        return bool(share_of((here.actual - here.output).abs(), here.budget).max() > 1)

    def _replayed(self, where: str) -> Iterator[tuple[Hypothesis, str, Variants]]:
        """Every hypothesis about the stages that ``where`` covers, with the first tap of its site."""
        for tap in self._sites(where):
            for hypothesis in self._by_site.get(site_of(tap), []):
                variants = hypothesis.variants(self.scene, tap)
                if variants:
                    yield hypothesis, tap, variants

    def _sites(self, where: str) -> tuple[str, ...]:
        """The first tap of each site that an observed tap covers; none where it covers too many stages to replay."""
        if len(self.covered(where)) > MAX_SPAN:
            return ()
        return tuple(dict.fromkeys(site_taps(name)[0] for name in self.covered(where)))

    def covered(self, where: str) -> tuple[str, ...]:
        """The stages that a site's recorded taps are judged over: themselves, and those before that were not recorded."""
        stages, present = self.scene.stages, self.scene.candidate
        observed = [tap for tap in site_taps(where) if tap in present]
        found = {name for tap in observed for name in (*unrecorded(stages[tap], stages, present), tap)}
        return tuple(name for name in stages if name in found)

    def _residuals(self, observed: Iterable[str], variants: Mapping[str, Stage]) -> "Residuals":
        scene, parts = self.scene, []
        stages = {**scene.stages, **variants}
        for tap in observed:
            actual = scene.candidate[tap]
            expected = expect_locally(stages[tap], stages, scene.candidate, scene.precision)
            budget = expected.budget + storage_uncertainty(expected.output, actual.dtype, scene.precision)
            mask = compared(tap, scene.inputs).expand(actual.shape)
            output = as_stored(expected.output, actual.dtype, scene.precision).expand(actual.shape)
            held = as_computed(expected.output, actual, scene.precision).expand(actual.shape)
            parts.append((actual.double()[mask], output[mask], held[mask], budget.expand(actual.shape)[mask]))
        actual, output, held, budget = (torch.cat(each) for each in zip(*parts, strict=True))
        shared = scene.config.n_embd if any(site_of(tap) == "ln" for tap in observed) else 1
        return Residuals(actual, output, held, budget, int((budget > 0).sum()) // shared)

    def _fit(self, hypothesis: Hypothesis, home: str, here: "Residuals", right: "Residuals") -> Fit:
        budget = torch.maximum(here.budget, right.budget)
        error = here.actual - here.output
        weight = torch.where(budget > 0, 1 / budget, 0.0)
        weighed, moved = error * weight, (here.output - right.output) * weight
        off = right.actual - right.output
        size = float((moved * moved).sum())
        return Fit(
            name=hypothesis.name,
            home=home,
            share=float(share_of(error.abs(), budget).max()),
            max_error=float(error.abs().max()),
            rms=float(weighed.square().mean().sqrt()),
            effect=_effect(here, right),
            slope=float((off * weight * moved).sum()) / size if size > 0 else 0.0,
            independent=max(here.independent, right.independent),
            fitted=hypothesis.fitted,
            telling=_telling(here, right, weight),
        )

    def explain(self, where: str) -> Finding | None:
        """The finding at a tap; None where the right operation explains it."""
        right, *others = self.fits(where)
        different = [fit for fit in others if fit.effect > 0 and math.isfinite(fit.rms)]
        if right.share <= 1:
            best = min(different, key=lambda fit: fit.rms, default=None)
            if best is None or best.fitted or best.share > 1 or min(best.telling, best.log_odds(right)) < SUBTLE:
                return None
            if abs(best.slope - 1) > SLOPE_SLACK or len(_best(different)) > 1:
                return None
        within = [fit for fit in different if fit.share <= 1 and fit.better(right)]
        named = [fit for fit in within if not fit.fitted]
        return self._finding(where, right, _best(named) or _best(within))

    def _finding(self, where: str, right: Fit, best: list[Fit]) -> Finding:
        recorded = self.scene.candidate
        span = tuple(name for name in self.covered(where) if name == where or name not in recorded)
        kind: CauseKind = "named" if len(best) == 1 else "tie" if best else "unknown"
        suspects = (best[0].home,) if kind == "named" else span
        tensors = tuple(dict.fromkeys(name for tap in suspects for name in self.scene.stages[tap].tensors))
        following = self._next_step(where, best, tensors)
        return Finding(
            where=where,
            span=span,
            kind=kind,
            cause=best[0].name if kind == "named" else None,
            home=best[0].home if kind == "named" else None,
            candidates=tuple(dict.fromkeys(fit.name for fit in best)),
            text=self._text(where, best),
            error_right=right.max_error,
            error_replayed=best[0].max_error if best else None,
            share_right=right.share,
            share_replayed=best[0].share if best else None,
            tensors=tensors,
            next_step=following.sentence,
            next_tap=following.tap,
        )

    def _text(self, where: str, best: Sequence[Fit]) -> str:
        known = {hypothesis.name: hypothesis for group in self._by_site.values() for hypothesis in group}
        causes = []
        for fit in best:
            hypothesis = known[fit.name]
            evidence = hypothesis.evidence(self.scene, where) if hypothesis.evidence is not None else ""
            place = "" if fit.home == where else f"in {fit.home}, "
            causes.append(f"{place}{hypothesis.cause} [{fit.name}]" + (f", {evidence}" if evidence else ""))
        if not causes and len(self.covered(where)) > MAX_SPAN:
            return f"it lies in one of {len(self.covered(where))} stages, too many to replay the known faults in"
        if not causes:
            return "none of the known faults reproduces it"
        return causes[0] if len(causes) == 1 else "any of these reproduces it: " + "; ".join(causes)

    def _next_step(self, where: str, best: Sequence[Fit], tensors: Sequence[str]) -> Apart:
        scene = self.scene
        reads = f" (it reads {', '.join(tensors)})" if tensors else ""
        if len(best) == 1:
            return Apart(f"correct this where your engine computes {best[0].home}{reads}, and run again")
        if best and where.endswith("attn.pattern") and self._masked(scene.stages[where].inputs[0]):
            scores = "the scores before the mask"
            return Apart(f"{scene.ask(scores)}: yours hold the mask already, so that these give the same pattern")
        if best:
            replayed = ((hypothesis, tap) for hypothesis, tap, _ in self._replayed(where))
            return tell_apart(scene, where, tied_at(where, replayed, {(fit.name, fit.home) for fit in best}))
        following = choose_next(scene.stages, scene.candidate, where)
        if following is not None:
            return Apart(
                f"{scene.ask(following.tap)} as well: the fault lies between those that are there", following.tap
            )
        return Apart(f"compare your code for {where} with the operation itself{reads}")

    def _masked(self, scores: str) -> bool:
        """Whether scores of the future were recorded with the mask on them."""
        recorded, inputs = self.scene.candidate, self.scene.inputs
        if scores not in recorded or inputs.ids.shape[1] < 2:
            return False
        value = recorded[scores]  # [batch, head, pos_q, pos_k]
        future = value[(~inputs.allowed & inputs.real[:, None, :, None]).expand(value.shape)]
        return bool((future < MASKED).any())

    def visible(self, where: str) -> dict[tuple[str, str], float]:
        """Mistake and stage it would be made at -> the size of its effect here, in budgets; up to 1 it cannot be seen.

        For every hypothesis about the stages that ``where`` covers; q, k and v stand under the first of the three.
        """
        observed = [tap for tap in site_taps(where) if tap in self.scene.candidate]
        right = self._residuals(observed, {})
        return {
            (hypothesis.name, tap): _effect(self._residuals(observed, variants), right)
            for hypothesis, tap, variants in self._replayed(where)
            if not hypothesis.fitted
        }


@dataclass(frozen=True)
class Residuals:
    """What was recorded, what an explanation gives, and its budget, over all compared elements of a site (flat)."""

    actual: Tensor
    output: Tensor
    held: Tensor
    """The output rounded to the dtype that the engine computes in."""
    budget: Tensor
    independent: int


def _telling(here: Residuals, right: Residuals, weight: Tensor) -> float:
    """The log-likelihood ratio over the elements at which the two explanations leave different values in memory.

    Where they round to the same value, whichever lies nearer to it has nothing to say: attention to one key alone
    makes every other weight vanish in the rounding of what it is added to.
    """
    tells = (here.held != right.held) & (weight > 0)
    if not bool(tells.any()):
        return 0.0
    ours, theirs = (((each.actual - each.output) * weight)[tells].square().mean().sqrt() for each in (here, right))
    count = min(int(tells.sum()), here.independent, right.independent)
    return count * math.log(max(float(theirs), RESIDUAL_FLOOR) / max(float(ours), RESIDUAL_FLOOR))


def _effect(here: Residuals, right: Residuals) -> float:
    """The largest difference of an explanation from the right operation, in budgets."""
    budget = torch.maximum(here.budget, right.budget)
    return float(share_of((here.output - right.output).abs(), budget).max())


def _best(fits: Sequence[Fit]) -> list[Fit]:
    """The likeliest fit, and those that the data cannot tell from it."""
    if not fits:
        return []
    first = min(fits, key=lambda fit: fit.rms)
    return [first, *(fit for fit in fits if fit is not first and first.log_odds(fit) < DECISIVE)]
