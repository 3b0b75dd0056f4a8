"""How values came to be written down, which may be wrong where the engine is right: copies, empty buffers, other axes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from labkit.verification.budget import compared
from labkit.verification.chain import recorded_inputs
from labkit.verification.hypotheses import Scene
from labkit.verification.lint_layout import fitting_layout, written_otherwise
from labkit.verification.readings.reading import Reading, Stated, without
from labkit.verification.verdict import expect_locally
from labkit.words import listed


def recordings(scene: Scene, stated: Stated, wrong: Sequence[str]) -> Iterator[Reading]:
    """What may have gone wrong while the values were written down."""
    yield from _twins(scene, stated, wrong)
    for tap in wrong:
        value = scene.candidate[tap]
        if not bool(value.any()):
            yield Reading(
                name="never-written",
                text=f"every element of {tap} is zero: {stated.words.empty}",
                next_step=stated.words.fill,
                scene=without(scene, [tap]),
                about=(tap,),
            )
        for before, after in _repeated(stated.passes(tap)):
            names = [tap if number == 0 else f"step.{number - 1}.{tap}" for number in (before, after)]
            yield Reading(
                name="recorded-once",
                text=f"{names[1]} is byte for byte {names[0]}, though each step has a position of its own: not recorded anew?",
                next_step=f"record {tap} in every step",
                scene=without(scene, [tap]),
                about=(tap,),
            )
        yield from _layouts(scene, stated, tap)
    for tap in wrong:
        consumers = [
            name for name in wrong if tap in recorded_inputs(scene.stages[name], scene.stages, set(scene.candidate))
        ]
        if consumers:
            yield Reading(
                name="recorded-elsewhere",
                text=f"{listed(consumers, most=2)} {'was' if len(consumers) == 1 else 'were'} not computed from what {tap} holds: "
                "is it of another place?",
                next_step=stated.words.elsewhere.format(tap=tap),
                scene=without(scene, [tap]),
                about=(tap,),
            )


def _repeated(passes: Sequence[Tensor]) -> Iterator[tuple[int, int]]:
    """The first two decode steps, counted from 1 (0 is the prompt), that hold one value."""
    for after in range(1, len(passes)):
        for before in range(after):
            if torch.equal(passes[before], passes[after]):
                yield before, after
                return


def _twins(scene: Scene, stated: Stated, wrong: Sequence[str]) -> Iterator[Reading]:
    """Taps that hold the bytes of another: one buffer recorded under several names, first or last."""
    for names in _groups(scene, wrong):
        told = "is byte for byte" if len(names) == 2 else "are each byte for byte"
        for kept in (names[-1], names[0]):
            others = tuple(tap for tap in names if tap != kept)
            yield Reading(
                name="recorded-twice",
                text=f"{listed(others, most=6)} {told} {kept}: {stated.words.copied}",
                next_step=stated.words.uncopy,
                scene=without(scene, others),
                about=others,
            )
        right = [tap for tap in names if tap not in wrong]
        if len(right) == 1:  # what follows was computed from the copy
            others = tuple(tap for tap in names if tap in wrong)
            yield Reading(
                name="one-buffer",
                text=f"{listed(others, most=6)} {told} {right[0]}, and what follows was computed from it: one buffer for both?",
                next_step="give each stage a buffer of its own",
                scene=scene,
                about=others,
            )


def _groups(scene: Scene, wrong: Sequence[str]) -> list[tuple[str, ...]]:
    """Sets of taps with equal values, zeros left out, that one which differs belongs to."""
    found: list[tuple[str, ...]] = []
    for tap in wrong:
        value = scene.candidate[tap]
        if any(tap in group for group in found) or not bool(value.any()):
            continue
        same = [tap]
        for other in scene.stages:
            if other != tap and other in scene.candidate:
                held = scene.candidate[other]
                if held.shape == value.shape and held.dtype == value.dtype and torch.equal(held, value):
                    same.append(other)
        if len(same) > 1:
            found.append(tuple(each for each in scene.stages if each in same))
    return found


def _layouts(scene: Scene, stated: Stated, tap: str) -> Iterator[Reading]:
    """The right shape, and the values in another order of its axes."""
    value = scene.candidate[tap].double()
    true = expect_locally(scene.stages[tap], scene.stages, scene.candidate, scene.precision).output
    layout = fitting_layout(value, true, compared(tap, scene.inputs)) if true.shape == value.shape else None
    if layout is not None:
        yield Reading(
            name="axes-reordered",
            text=written_otherwise(tap, layout),
            next_step=f"{layout.describe(value.shape)} {stated.words.back}",
            scene=replace(scene, candidate={**scene.candidate, tap: layout.restore(scene.candidate[tap])}),
        )
