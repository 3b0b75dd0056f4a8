"""The record of one verification: what was compared, what was found, and how far the answer can be trusted."""

from dataclasses import dataclass
from typing import Literal

from labkit.verification.tokens import TokenResult
from labkit.verification.verdict import StageResult

Verdict = Literal["same", "differs", "cannot tell"]
RETURN_CODES: dict[Verdict, int] = {"same": 0, "differs": 1, "cannot tell": 2}


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt: its text where there is one, and its ids."""

    text: str | None
    ids: tuple[int, ...]

    def describe(self) -> str:
        """The text in quotes, or the ids."""
        return repr(self.text) if self.text is not None else f"ids {list(self.ids)}"


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How alike the logits are, over all prompts and positions."""

    pearson: float
    """Pearson's correlation of the candidate's logits with the truth's; the smallest over the prompts."""
    top_1: float
    """Share of positions whose first choice agrees."""
    top_5: float
    """Mean share of the truth's top five among the candidate's top five."""


@dataclass(frozen=True, kw_only=True)
class Controls:
    """Whether the checks themselves can be trusted on these prompts."""

    chain_error: float
    """Our chain of operations on transformers' own float64 taps, relative to each stage's largest value."""
    chain_holds: bool
    reference_used: float
    """The most of the rounding bound that transformers' own run takes anywhere; above 1 it strays from the truth."""
    reference_strays_at: str | None
    clean_used: float
    """The most of the budget that transformers takes when summed in an order that set no budget."""
    clean_accused: tuple[str, ...]
    """Stages of that clean run that were called different; there must be none."""
    planted: int
    """Small faults planted, one at every stage."""
    planted_missed: tuple[str, ...]
    """Stages whose planted fault was not seen; there must be none."""

    @property
    def failures(self) -> tuple[str, ...]:
        """Why no verdict can be given, in words; empty where all controls hold."""
        reasons = []
        if not self.chain_holds:
            reasons.append(f"labkit's chain of operations misses transformers' float64 run by {self.chain_error:.1e}")
        if self.reference_strays_at is not None:
            reasons.append(
                f"transformers' own run strays {self.reference_used:.2g} times beyond the rounding bound "
                f"at {self.reference_strays_at}"
            )
        if self.clean_accused:
            reasons.append(f"a clean run in another summation order was accused at {', '.join(self.clean_accused)}")
        if self.planted_missed:
            reasons.append(f"a small planted fault was missed at {', '.join(self.planted_missed)}")
        return tuple(reasons)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The answer of ``labkit.verify``.

    ``str()`` gives it in a few lines; ``return_code`` is 0 for same, 1 for differs, 2 for cannot tell.
    """

    checkpoint: str
    engine: str
    dtype: str
    planted: str | None
    prompts: tuple[Prompt, ...]
    stages: tuple[StageResult, ...]
    agreement: Agreement
    tokens: tuple[TokenResult, ...]
    controls: Controls
    notes: tuple[str, ...] = ()

    @property
    def first_divergence(self) -> str | None:
        """The first stage, in order of computation, that rounding does not explain."""
        return next((stage.name for stage in self.stages if stage.verdict == "differs"), None)

    @property
    def origins(self) -> tuple[str, ...]:
        """Every stage whose own operation is wrong; the others that differ were fed wrong inputs."""
        return tuple(stage.name for stage in self.stages if stage.cause in ("local", "non-finite"))

    @property
    def verdict(self) -> Verdict:
        """same, differs, or cannot tell where a control failed."""
        if self.controls.failures:
            return "cannot tell"
        if self.first_divergence is not None or any(result.verdict == "differs" for result in self.tokens):
            return "differs"
        return "same"

    @property
    def return_code(self) -> int:
        """The command line's exit code."""
        return RETURN_CODES[self.verdict]

    def headline(self) -> str:
        """The verdict in one sentence."""
        if self.verdict == "cannot tell":
            return "cannot tell: " + "; ".join(self.controls.failures)
        if self.first_divergence is not None:
            stage = next(each for each in self.stages if each.name == self.first_divergence)
            more = [name for name in self.origins if name != stage.name]
            also = f"; also wrong by themselves: {', '.join(more)}" if more else ""
            return (
                f"differs: {stage.name} is the first stage beyond rounding "
                f"({stage.used:.3g} times its budget, the operation itself {stage.local_used:.3g} times){also}"
            )
        if self.verdict == "differs":
            return "differs: every stage is within rounding, but the greedy tokens part by more than rounding explains"
        most = max(self.stages, key=lambda stage: stage.used)
        return f"same: all {len(self.stages)} stages within rounding (most of its budget used: {most.name}, {most.used:.2f})"

    def __str__(self) -> str:
        lines = [self.headline()]
        lines += [f"  {s.name}: max_abs {s.difference.max_abs:.3g}, {s.verdict}" for s in self.stages if s.cause]
        return "\n".join(lines)
