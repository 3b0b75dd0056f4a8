"""A reading: one way to take a candidate other than it asks to be taken, and the words it is told in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from labkit.verification.chain import Inputs, build_chain
from labkit.verification.hypotheses import Scene
from labkit.verification.precision import Precision, dtype_name
from labkit.verification.standard import Standard

ReadingName = Literal[
    "mask-unstated",
    "other-ids",
    "other-positions",
    "other-weights",
    "recorded-elsewhere",
    "positions-unstated",
    "positions-ignore-padding",
    "weight_dtype",
    "compute_dtype",
    "recorded-twice",
    "one-buffer",
    "never-written",
    "recorded-once",
    "axes-reordered",
]
READINGS: tuple[ReadingName, ...] = get_args(ReadingName)
"""Every reading by its name, which a finding has as its cause."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One way to read a trace other than it asks to be read: what it would mean, and what to do then."""

    name: ReadingName
    text: str
    next_step: str
    scene: Scene
    """The operations, inputs, precision and recorded values as they would then be."""
    about: tuple[str, ...] = ()
    """Taps that the scene leaves out, because what was recorded under their names is not they."""


@dataclass(frozen=True, kw_only=True)
class Words:
    """How to speak of a candidate, a trace or an engine that was run: templates of what is told, and of what to do."""

    declared: str
    weights: str
    arithmetic: str
    copied: str
    uncopy: str
    empty: str
    fill: str
    back: str
    elsewhere: str

    def other_weights(self, declared: torch.dtype, found: torch.dtype) -> tuple[str, str]:
        """What to say of weights in another dtype than declared, and what to do."""
        was, name = dtype_name(declared), dtype_name(found)
        what = f"{self.declared.format(key='weight_dtype', value=was)}; its values are those of weights in {name}"
        return what, self.weights.format(name=name, was=was)


OF_A_TRACE = Words(
    declared="the trace declares {key} {value}",
    weights="write weight_dtype {name}, or hold the weights in {was}",
    arithmetic="write compute_dtype {name}{also}, or record the values before they are rounded",
    copied="recorded twice?",
    uncopy="copy each buffer when its stage is computed, before the next one overwrites it",
    empty="never written?",
    fill="copy the buffer out after the stage is computed",
    back="before recording",
    elsewhere="record {tap} where its stage has been computed, before anything more is done to it",
)
OF_AN_ENGINE = Words(
    declared="it was judged as an engine of {key} {value}",
    weights="load the checkpoint's weights in {was}, not by way of {name}",
    arithmetic='give dtype="{name}", if it is to compute in that',
    copied="one module for both?",
    uncopy="name the module of each in the name map",
    empty="is that its module?",
    fill="name the module that gives it in the name map",
    back="in the rule's layout",
    elsewhere="look at which module the name map has for {tap}, and at its side",
)


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What is said of a candidate that may be wrong, and by whom it is held against what."""

    standard: Standard
    words: Words
    positions: bool
    """Whether it states position_ids."""
    passes: Callable[[str], Sequence[Tensor]]
    """A tap -> its value in each forward pass."""


def given(scene: Scene, inputs: Inputs) -> Scene:
    """The scene of other inputs."""
    return replace(scene, inputs=inputs, stages=build_chain(scene.config, scene.weights, inputs))


def computed(scene: Scene, standard: Standard, precision: Precision) -> Scene:
    """The scene of another precision; weights of another dtype are read anew."""
    if precision.weight == scene.precision.weight:
        return replace(scene, precision=precision)
    return standard.in_precision(precision).scene(scene.candidate, scene.inputs)


def without(scene: Scene, taps: Sequence[str]) -> Scene:
    """The scene as if some taps were not recorded."""
    return replace(scene, candidate={name: value for name, value in scene.candidate.items() if name not in taps})
