"""A stage -> pieces small enough to judge: a long prompt's attention squares and logits take gigabytes in float64.

A piece is a slice of the second axis: of positions for the logits, of heads for what attention computes head by head.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from labkit.verification.chain import Inputs, Stage
from labkit.verification.verdict import StageResult

PIECE_NUMEL = 1 << 21
"""Elements judged at a time: a dozen float64 tensors of this size are alive at once (16 MiB each)."""

_BY_HEAD = (".attn.q", ".attn.k", ".attn.v", ".attn.scores", ".attn.pattern", ".attn.z")
"""Taps with heads on the second axis."""
_SQUARES = (".attn.scores", ".attn.pattern", ".attn.z")
"""Stages whose heads do not know each other."""


@dataclass(frozen=True)
class Piece:
    """Some positions or heads of a stage, or all of it."""

    part: slice
    inputs: Inputs

    @property
    def whole(self) -> bool:
        """Whether nothing is cut."""
        return self.part == slice(None)

    def taps(self, taps: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The taps, or budgets of taps, cut to this piece."""
        return taps if self.whole else _Cut(taps, self.part)

    def placed(self, result: StageResult, shape: Sequence[int]) -> StageResult:
        """A result on this piece with its places counted in the whole stage, whose shape is given."""
        if self.whole:
            return result
        return replace(
            result,
            shape=tuple(shape),
            worst=self._place(result.worst),
            local_worst=self._place(result.local_worst),
            difference=replace(result.difference, worst=self._place(result.difference.worst)),
        )

    def _place(self, at: tuple[int, ...]) -> tuple[int, ...]:
        return (at[0], at[1] + self.part.start, *at[2:]) if at else at


@dataclass(frozen=True)
class Prefix:
    """The first positions of a prompt: what came after had no part in them, so their taps are a whole forward."""

    count: int
    inputs: Inputs

    def taps(self, taps: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The taps cut to these positions."""
        return _Cut(taps, slice(0, self.count), _first_positions)


View = Piece | Prefix
"""What a replay looks at."""


def _second_axis(_name: str, tensor: Tensor, part: slice) -> Tensor:
    return tensor[:, part] if tensor.dim() > 1 else tensor


def _first_positions(name: str, tensor: Tensor, part: slice) -> Tensor:
    if name.endswith(_SQUARES[:2]):
        return tensor[..., part, part]  # [batch, head, pos_q, pos_k]
    return tensor[..., part, :]  # [..., pos, width]


class _Cut(Mapping[str, Tensor]):
    """Tensors cut when they are read."""

    def __init__(
        self,
        taps: Mapping[str, Tensor],
        part: slice,
        cut: Callable[[str, Tensor, slice], Tensor] = _second_axis,
    ) -> None:
        self._taps = taps
        self._part = part
        self._cut = cut

    def __getitem__(self, name: str) -> Tensor:
        return self._cut(name, self._taps[name], self._part)

    def __contains__(self, name: object) -> bool:
        return name in self._taps

    def __iter__(self) -> Iterator[str]:
        return iter(self._taps)

    def __len__(self) -> int:
        return len(self._taps)


def pieces_of(stage: Stage, needed: Sequence[str], inputs: Inputs, *, heads: int, vocabulary: int) -> list[Piece]:
    """The stage whole, or in pieces where it is large and its parts do not know each other.

    ``needed``: the recorded taps that it is judged from.
    """
    batch, pos = inputs.ids.shape
    if stage.tap == "logits" and all(name == "ln_f" or name.endswith("resid_post") for name in needed):
        parts = _parts(pos, batch * vocabulary)
        return [Piece(part, inputs if part == slice(None) else _positions(inputs, part)) for part in parts]
    if stage.tap.endswith(_SQUARES) and all(name.endswith(_BY_HEAD) for name in needed):
        return [Piece(part, inputs) for part in _parts(heads, batch * pos * pos)]
    return [Piece(slice(None), inputs)]


def views_of(pieces: Sequence[Piece], judged: Sequence[StageResult], inputs: Inputs, heads: int) -> list[View]:
    """What to replay a stage on, in turn until its fault is named: all of it where that is small.

    Of the logits, the piece with the most severe result; of attention, the first positions and then everything.
    """
    if len(pieces) == 1:
        return [pieces[0]]
    if judged[0].name == "logits":
        return [pieces[max(range(len(pieces)), key=lambda number: judged[number].severity)]]
    count = max(2, math.isqrt(PIECE_NUMEL // (inputs.ids.shape[0] * heads)))
    return [Prefix(count, _positions(inputs, slice(0, count))), Piece(slice(None), inputs)]


def _parts(count: int, numel: int) -> list[slice]:
    """``count`` parts of ``numel`` elements each, as few slices as keep to the size of a piece."""
    step = max(1, PIECE_NUMEL // numel)
    if step >= count:
        return [slice(None)]
    return [slice(start, start + step) for start in range(0, count, step)]


def _positions(inputs: Inputs, part: slice) -> Inputs:
    return replace(
        inputs,
        ids=inputs.ids[:, part],
        attention_mask=None if inputs.attention_mask is None else inputs.attention_mask[:, part],
        position_ids=None if inputs.position_ids is None else inputs.position_ids[..., part],
    )
