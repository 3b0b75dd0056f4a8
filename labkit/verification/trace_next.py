"""A fault that lies somewhere between two recorded taps -> the tap to record next, which halves the search.

For engines where every dump is dear. Recording a tap tells whether the fault lies in the stages that lead to it (itself
included) or in the others; the best tap leaves as near as possible half of them on either side.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass

from labkit.verification.chain import Stage, recorded_inputs, unrecorded


@dataclass(frozen=True, kw_only=True)
class NextTap:
    """Which tap to record, and what it would tell apart."""

    tap: str
    origin: str
    """The recorded stage that is wrong by itself."""
    suspects: tuple[str, ...]
    """The stages that the fault may lie in, in order of computation."""
    before: int
    """How many of the suspects lead to ``tap``, itself included."""
    known: tuple[str, ...]
    """The recorded stages that the suspects were computed from."""

    def __str__(self) -> str:
        count = len(self.suspects)
        start = f"after {', '.join(self.known)}" if self.known else "from the token ids on"
        return (
            f"the fault at {self.origin} lies in one of {count} stages {start}; record {self.tap} next: "
            f"it tells {self.before} of them from the other {count - self.before}"
        )


def choose_next(stages: Mapping[str, Stage], present: Container[str], origin: str) -> NextTap | None:
    """The unrecorded tap that halves the search for the fault at ``origin``; None where no tap lies in between."""
    recorded = {tap for tap in stages if tap in present}
    between = unrecorded(stages[origin], stages, recorded)
    if not between:
        return None
    suspects = (*between, origin)
    sizes = {tap: len(unrecorded(stages[tap], stages, recorded)) + 1 for tap in between}
    best = min(between, key=lambda tap: abs(2 * sizes[tap] - len(suspects)))
    return NextTap(
        tap=best,
        origin=origin,
        suspects=suspects,
        before=sizes[best],
        known=recorded_inputs(stages[origin], stages, recorded),
    )
