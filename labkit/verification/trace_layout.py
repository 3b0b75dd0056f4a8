"""A tap in the wrong shape -> the reshape and transpose that bring it to the right one.

An engine may keep the axes in another order, merge neighbours or drop an axis of size one. Whether some order of the
right axes, with neighbours merged, gives the shape that was found is a small search.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from labkit.model.taps import tap_axes


@dataclass(frozen=True)
class Layout:
    """One way the values may lie: ``order`` lists the right axes in the order that they were written in."""

    target: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def written(self) -> tuple[int, ...]:
        """The sizes in the order they were written."""
        return tuple(self.target[axis] for axis in self.order)

    @property
    def back(self) -> tuple[int, ...]:
        """The permutation that brings the written axes into their places."""
        return tuple(self.order.index(axis) for axis in range(len(self.order)))

    @property
    def displaced(self) -> int:
        """Axes out of place."""
        return sum(place != axis for place, axis in enumerate(self.order))

    def restore(self, value: Tensor) -> Tensor:
        """The tensor in the right layout."""
        return value.reshape(self.written).permute(self.back)

    def describe(self, got: Sequence[int]) -> str:
        """What to do to a tensor of shape ``got``, in words.

        >>> Layout((2, 3, 5, 4), (0, 2, 1, 3)).describe([2, 5, 12])
        'reshape it to [2, 5, 3, 4], then permute its axes by (0, 2, 1, 3)'
        """
        reshape = f"reshape it to {list(self.written)}" if tuple(got) != self.written else ""
        if not self.displaced:
            return reshape
        swapped = [axis for axis, place in enumerate(self.back) if axis != place]
        turn = (
            f"transpose axes {swapped[0]} and {swapped[1]}"
            if len(swapped) == 2 and not reshape
            else f"permute its axes by {self.back}"
        )
        return f"{reshape}, then {turn}" if reshape else turn


def layouts_of(got: Sequence[int], target: Sequence[int]) -> Iterator[Layout]:
    """Every layout of a tensor of shape ``target`` that could have been found as shape ``got``, the plainest first.

    >>> next(layouts_of([5, 2, 4], [2, 5, 4])).describe([5, 2, 4])
    'transpose axes 0 and 1'
    """
    found = [
        Layout(tuple(target), order)
        for order in itertools.permutations(range(len(target)))
        if _merges_to([target[axis] for axis in order], got)
    ]
    yield from sorted(found, key=lambda layout: layout.displaced)


def _merges_to(sizes: Sequence[int], got: Sequence[int]) -> bool:
    """Whether merging neighbours, and dropping or adding ones, turns ``sizes`` into ``got``."""
    rest = [size for size in sizes if size != 1]
    for wanted in (size for size in got if size != 1):
        merged = 1
        while merged < wanted and rest:
            merged *= rest.pop(0)
        if merged != wanted:
            return False
    return not rest


def advise(tap: str, got: Sequence[int], allowed: Sequence[Sequence[int]]) -> str | None:
    """How to bring a tap of shape ``got`` to one of its allowed shapes; None where no rearrangement can.

    >>> advise("h.0.attn.q", [1, 5, 3, 4], [[1, 3, 5, 4]])
    'transpose axes 1 and 2, to [batch, head, pos, head_dim]'
    """
    for target in allowed:
        for layout in layouts_of(got, target):
            axes = tap_axes(tap)
            named = [*(["batch"] if len(target) > len(axes) else []), *axes]
            return f"{layout.describe(got)}, to [{', '.join(named)}]"
    return None


def shape_advice(tap: str, got: Sequence[int], allowed: Sequence[Sequence[int]]) -> str:
    """What to do about a tap of shape ``got``, in words.

    >>> shape_advice("logits", [1, 97], [[1, 8, 97]])
    'record the logits of every position, not of the last alone'
    """
    batch, last = allowed[0][0], allowed[0][-1]
    if tap == "logits" and tuple(got) in ((batch, last), (batch, 1, last)):
        return "record the logits of every position, not of the last alone"
    return advise(tap, got, allowed) or "no transpose or reshape gives it; record the whole tap"
