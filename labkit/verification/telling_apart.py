"""Mistakes that give one recorded value -> the tap, or the prompt, with which they would no longer.

Each is run again, on the candidate's own inputs, at the stages that were not recorded: where two of them differ by more
than their budget, that tap tells which it was. Where no stage of this prompt does, trial prompts are run through the right
operations up to there, and each mistake on them.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labkit.verification.budget import Expected, compared, share_of
from labkit.verification.chain import Inputs, Stage, build_chain, unrecorded
from labkit.verification.hypotheses import Hypothesis, Scene, site_taps
from labkit.verification.trials import LENGTHS, trial_prompts
from labkit.verification.verdict import expect_between
from labkit.words import counted, listed

MOST_NAMED = 4
"""Mistakes listed in one sentence."""


@dataclass(frozen=True)
class Tied:
    """One of the mistakes: what it is, the first tap of the site it would have been made at, and what to call it."""

    hypothesis: Hypothesis
    tap: str
    label: str

    def stages(self, scene: Scene) -> Mapping[str, Stage] | None:
        """The whole chain as it would then have been run; None where the scene has no room for it."""
        variants = self.hypothesis.variants(scene, self.tap)
        return {**scene.stages, **variants} if variants else None


def tied_at(where: str, replayed: Iterable[tuple[Hypothesis, str]], best: Collection[tuple[str, str]]) -> list[Tied]:
    """Of all mistakes that were replayed at ``where`` those in ``best``, by name and the stage they would be made at."""
    found = []
    for hypothesis, tap in replayed:
        home = where if where in site_taps(tap) else tap
        if (hypothesis.name, home) in best:
            several = sum(name == hypothesis.name for name, _ in best) > 1
            found.append(Tied(hypothesis, tap, f"{hypothesis.name} in {home}" if several else hypothesis.name))
    return found


@dataclass(frozen=True)
class Apart:
    """What would tell tied mistakes apart: a tap to record, or else a prompt to run."""

    sentence: str
    tap: str | None = None


def tell_apart(scene: Scene, where: str, tied: Sequence[Tied]) -> Apart:
    """What to do next about a tie at ``where``."""
    names = list(dict.fromkeys(each.label for each in tied))
    best, pairs = "", set[frozenset[str]]()
    for tap, found in _in_between(scene, where, tied):
        if len(found) > len(pairs):
            best, pairs = tap, found
    if best:
        return Apart(f"{scene.ask(best)}: {_told(names, pairs)}", best)
    same = "they give the same values at every stage of this prompt"
    if any(each.hypothesis.fitted for each in tied):
        return Apart(f"{same}: try one with more, and more varied, tokens")
    for text, inputs in trial_prompts(scene.config):
        found = _on(inputs, scene, where, tied)
        if len(found) > len(pairs):
            best, pairs = f"one of {text}" if len(inputs.ids) == 1 else text, found
        if len(pairs) == len(names) * (len(names) - 1) // 2:
            break
    if best:
        return Apart(f"{same}, but not on {best}, which {_tells(names, pairs)}: run such a prompt")
    tried = f"up to {counted(min(max(LENGTHS), scene.config.n_positions), 'token')}, and a padded batch"
    others = f"at {where} on every other that was tried ({tried})"
    return Apart(f"{same}, and {others}: look for each of them in your code")


def _told(names: Sequence[str], pairs: set[frozenset[str]]) -> str:
    if len(pairs) == len(names) * (len(names) - 1) // 2:
        return "there they give different values"
    return f"there {_groups(names, pairs)} give different values"


def _tells(names: Sequence[str], pairs: set[frozenset[str]]) -> str:
    if len(pairs) == len(names) * (len(names) - 1) // 2:
        return "tells them apart"
    return f"tells {_groups(names, pairs)} apart"


def _groups(names: Sequence[str], pairs: set[frozenset[str]]) -> str:
    """Names that stay together, against each other."""
    groups: list[list[str]] = []
    for name in names:
        home = next((each for each in groups if all(frozenset((name, other)) not in pairs for other in each)), None)
        if home is None:
            groups.append([name])
        else:
            home.append(name)
    return listed((" or ".join(group) for group in groups), most=MOST_NAMED)


def _in_between(scene: Scene, where: str, tied: Sequence[Tied]) -> Iterator[tuple[str, set[frozenset[str]]]]:
    """Every stage that was not recorded and leads to ``where``, with the pairs that differ there."""
    runs = [(each, _values(scene, where, each)) for each in tied]
    for tap in scene.stages:
        values = [(each, made[tap]) for each, made in runs if made is not None and tap in made]
        if tap not in scene.candidate and len(values) > 1:
            yield tap, _differing(values, compared(tap, scene.inputs))


def _values(scene: Scene, where: str, tied: Tied) -> dict[str, Expected] | None:
    """What a mistake gives at the stages between the recorded ones, and at the site itself."""
    stages = tied.stages(scene)
    if stages is None:
        return None
    made: dict[str, Expected] = {}
    for tap in (each for each in site_taps(where) if each in scene.candidate):
        wanted = (*unrecorded(scene.stages[tap], scene.stages, scene.candidate), tap)
        for name in reversed(wanted):  # a stage that the mistake passes by is run all the same
            if name not in made:
                made.update(expect_between(stages[name], stages, scene.candidate, scene.precision))
    return made


def _differing(values: Sequence[tuple[Tied, Expected]], mask: Tensor) -> set[frozenset[str]]:
    pairs = set()
    for (one, a), (other, b) in itertools.combinations(values, 2):
        if one.label != other.label and _differ(a, b, mask):
            pairs.add(frozenset((one.label, other.label)))
    return pairs


def _differ(a: Expected, b: Expected, mask: Tensor) -> bool:
    """Whether two values differ by more than rounding explains of either."""
    if a.output.shape != b.output.shape:
        return True
    budget = torch.maximum(a.budget, b.budget)
    return bool(share_of((a.output - b.output).abs(), budget, mask).max() > 1)


def _on(inputs: Inputs, scene: Scene, where: str, tied: Sequence[Tied]) -> set[frozenset[str]]:
    """The pairs that a prompt tells apart at the taps that are recorded at ``where``."""
    stages = build_chain(scene.config, scene.weights, inputs)
    right: dict[str, Tensor] = {}
    for name, stage in stages.items():
        right[name] = stage.operation.compute(*(right[each] for each in stage.inputs))
        if name == site_taps(where)[-1]:
            break
    kept = {name: value.to(scene.candidate[name].dtype) for name, value in right.items() if name in scene.candidate}
    trial = replace(scene, stages=stages, inputs=inputs, candidate=kept)
    runs = [(each, _values(trial, where, each)) for each in tied]
    pairs = set()
    for tap in (each for each in site_taps(where) if each in kept):
        values = [(each, made[tap]) for each, made in runs if made is not None]
        pairs |= _differing(values, compared(tap, inputs))
    return pairs
