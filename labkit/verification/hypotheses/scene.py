"""What a hypothesis is, and what it may look at.

A hypothesis says: *this operation was run, but so*. It gives the stage with another operation or other inputs, and is
held against the candidate's recorded output like the right operation is: same arithmetic in float64, same budget.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from labkit.config import GPT2Config
from labkit.verification.chain import Inputs, Stage
from labkit.verification.operations import Operation
from labkit.verification.precision import Precision


def ask_to_record(tap: str) -> str:
    """How to come by a tap of an engine that writes its own."""
    return f"record {tap}"


@dataclass(frozen=True)
class Scene:
    """One checkpoint, one prompt, one candidate: what replays are made from."""

    config: GPT2Config
    weights: Mapping[str, Tensor]  # float64, released names
    stages: Mapping[str, Stage]
    inputs: Inputs
    precision: Precision
    candidate: Mapping[str, Tensor]
    ask: Callable[[str], str] = ask_to_record
    """How to come by the value of a tap that is not there, in words."""

    def block(self, tap: str) -> int:
        """The block that a tap belongs to."""
        return int(tap.split(".")[1])

    def stream(self, block: int) -> str:
        """The tap of the residual stream that enters a block."""
        return "embed" if block == 0 else f"h.{block - 1}.resid_post"

    def changed(self, tap: str, operation: Operation, inputs: tuple[str, ...] | None = None) -> Stage:
        """The stage of ``tap`` with another operation, and other inputs where given."""
        stage = self.stages[tap]
        return replace(stage, operation=operation, inputs=stage.inputs if inputs is None else inputs)


Variants = Mapping[str, Stage]
"""The stages that the hypothesis says were run instead, by tap; empty where it says nothing of this checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One mistake that an engine may have made.

    ``site`` is the stage it was made at, without the block: ``mlp.post``, ``ln`` for all three norms, ``attn.qkv`` for
    q, k and v together. ``variants(scene, tap)`` gives the stages as they would then have been run, ``tap`` being the
    stage at the site (``h.3.attn.q`` for ``attn.qkv``).
    """

    name: str
    site: str
    cause: str
    variants: Callable[[Scene, str], Variants]
    fitted: bool = False
    """A parameter was solved for: such a hypothesis only counts where no named constant explains the data."""
    evidence: Callable[[Scene, str], str] | None = None
    """For fitted ones: the parameter and its uncertainty, in words."""
    recorded_only: bool = False
    """It can be replayed only where its own stage was recorded."""


def site_of(tap: str) -> str:
    """The site of a tap: its stage without the block, the norms and q, k, v each under one name.

    >>> [site_of(tap) for tap in ("h.3.attn.k", "ln_f", "h.0.ln_2", "h.1.mlp.out", "logits")]
    ['attn.qkv', 'ln', 'ln', 'mlp.out', 'logits']
    """
    stage = tap.split(".", 2)[2] if tap.startswith("h.") else tap
    if stage in ("attn.q", "attn.k", "attn.v"):
        return "attn.qkv"
    return "ln" if stage in ("ln_1", "ln_2", "ln_f") else stage


def site_taps(tap: str) -> tuple[str, ...]:
    """All taps of the site that a tap belongs to.

    >>> site_taps("h.3.attn.k")
    ('h.3.attn.q', 'h.3.attn.k', 'h.3.attn.v')
    """
    if site_of(tap) != "attn.qkv":
        return (tap,)
    return tuple(f"{tap[:-1]}{letter}" for letter in "qkv")
