"""A stage -> pieces of rows small enough to judge: logits of a long prompt over a large vocabulary take gigabytes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from labkit.verification.budget import Expected
from labkit.verification.chain import Inputs, Stage
from labkit.verification.verdict import Truth

PIECE_NUMEL = 1 << 23
"""Elements judged at a time: half a dozen float64 tensors of this size are alive at once (64 MiB each)."""

ROW_WISE = ("logits",)
"""Stages whose rows do not know each other, nor do those of their inputs."""


@dataclass(frozen=True)
class Piece:
    """Some positions of a stage, or all of them."""

    rows: slice
    inputs: Inputs

    def taps(self, taps: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The taps cut to these positions."""
        return taps if self.rows == slice(None) else _Rows(taps, self.rows)

    def truth(self, truth: Truth) -> Truth:
        """The true values cut to these positions."""
        if self.rows == slice(None):
            return truth
        return Truth({name: _cut(expected, self.rows) for name, expected in truth.expected.items()})


class _Rows(Mapping[str, Tensor]):
    """Taps [batch, pos, ...] cut to some positions when they are read."""

    def __init__(self, taps: Mapping[str, Tensor], rows: slice) -> None:
        self._taps = taps
        self._rows = rows

    def __getitem__(self, name: str) -> Tensor:
        return self._taps[name][:, self._rows]

    def __contains__(self, name: object) -> bool:
        return name in self._taps

    def __iter__(self) -> Iterator[str]:
        return iter(self._taps)

    def __len__(self) -> int:
        return len(self._taps)


def _cut(expected: Expected, rows: slice) -> Expected:
    parts = (expected.output, expected.own, expected.inherited)
    return Expected(*(part[:, rows] if part.dim() > 1 else part for part in parts))


def pieces_of(stage: Stage, needed: Sequence[str], inputs: Inputs, width: int) -> list[Piece]:
    """The stage whole, or in pieces of rows where it is row-wise and large.

    ``needed``: the recorded taps that it is judged from; ``width``: elements in a row.
    """
    batch, pos = inputs.ids.shape
    step = max(1, PIECE_NUMEL // (batch * width))
    row_wise = all(name == "ln_f" or name.endswith("resid_post") for name in needed)
    if stage.tap not in ROW_WISE or step >= pos or not row_wise:
        return [Piece(slice(None), inputs)]
    return [
        Piece(slice(start, start + step), _cut_inputs(inputs, slice(start, start + step)))
        for start in range(0, pos, step)
    ]


def _cut_inputs(inputs: Inputs, rows: slice) -> Inputs:
    return replace(
        inputs,
        ids=inputs.ids[:, rows],
        attention_mask=None if inputs.attention_mask is None else inputs.attention_mask[:, rows],
        position_ids=None if inputs.position_ids is None else inputs.position_ids[..., rows],
    )
