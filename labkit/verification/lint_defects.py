"""What lint-trace finds: defects, each with a code that stays the same, and notes."""

from dataclasses import dataclass
from pathlib import Path

from labkit.words import counted

CODES = {
    "metadata": "a key of __metadata__ is missing or has a value that cannot be used",
    "inputs": "input_ids, attention_mask or position_ids cannot be used",
    "missing": "a tap or a step that its neighbours lead one to expect is not there",
    "extra": "a tensor that is neither an input nor a tap",
    "shape": "a tap's shape is not that of its axes",
    "layout": "the shape is right, but the values lie in another order of axes",
    "dtype": "a tensor is stored in a dtype that it may not have",
    "precision": "the values are of a narrower dtype than the metadata declares",
    "non-finite": "a tap holds a NaN or an infinity",
    "unwritten": "a tap is all zeros",
    "aliased": "two taps hold the same bytes",
    "stale": "a tap holds the same bytes in two steps",
    "future": "a query attends to a key that it may not see",
}
"""Every code, and what it means."""


@dataclass(frozen=True, kw_only=True)
class Defect:
    """One thing that is wrong with a trace: its code, the tensor, what was found, and what to do."""

    code: str
    tensor: str | None
    what: str
    fix: str | None = None

    def __str__(self) -> str:
        where = f"{self.tensor}: " if self.tensor else ""
        return f"[{self.code}] {where}{self.what}" + (f"; {self.fix}" if self.fix else "")


@dataclass(frozen=True, kw_only=True)
class LintReport:
    """The answer of ``lint_trace``; ``return_code`` is 0 for clean, 1 for defects."""

    path: Path
    engine: str
    tensors: int
    taps: int
    steps: int
    """Decode steps after the first pass."""
    defects: tuple[Defect, ...]
    notes: tuple[str, ...]

    @property
    def return_code(self) -> int:
        """The command line's exit code."""
        return 1 if self.defects else 0

    def headline(self) -> str:
        """The outcome in one line."""
        held = counted(self.taps, "tap") + (f", {counted(self.steps, 'decode step')}" if self.steps else "")
        count = len(self.defects)
        outcome = counted(count, "defect") if count else "clean"
        return f"{self.path}: {held} from {self.engine}: {outcome}"

    def __str__(self) -> str:
        return "\n".join(
            [self.headline(), *(f"  {each}" for each in self.defects), *(f"  note: {n}" for n in self.notes)]
        )
