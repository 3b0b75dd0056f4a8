"""Cutting a long text where no piece can be cut in two, so that each block is encoded for itself.

In: a text. Out: blocks of bounded size. A cut is safe before white space that follows text, and where letters or
numbers end: no alternative of the pattern looks back, and only white space looks ahead.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from labkit.tokenizer.classes import BLANK, NUMBER, SPACE, class_table, code_points

BLOCK: Final = 1 << 18  # characters; less pays too little for the start-up of each step, more leaves the cache
TRIES: Final = 8  # blanks looked at one by one, before every class is


def blocks_of(text: str, *, size: int = BLOCK) -> Iterator[str]:
    """The text in blocks of about ``size`` characters; longer only where one piece is.

    >>> list(blocks_of("one two  three", size=5))
    ['one', ' two', '  three']
    """
    start = 0
    while len(text) - start > size:
        end = last_cut(text, start, start + size)
        if end is None:
            end = first_cut(text, start + size)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def last_cut(text: str, start: int, end: int) -> int | None:
    """The last safe cut in ``text[start + 1 : end]``; None where there is none."""
    place = end
    for _ in range(TRIES):
        place = max(text.rfind(" ", start + 1, place), text.rfind("\n", start + 1, place))
        if place < 0:
            break
        if class_table()[ord(text[place - 1])] < SPACE:
            return place
    return _cut_by_class(text, start, end, last=True)


def first_cut(text: str, start: int) -> int:
    """The first safe cut from ``start`` on; the text's end where there is none."""
    step = BLOCK
    while start < len(text):
        found = _cut_by_class(text, start - 1, min(start + step, len(text)), last=False)
        if found is not None:
            return found
        start += step
        step *= 2
    return len(text)


def _cut_by_class(text: str, start: int, end: int, *, last: bool) -> int | None:
    """The last or first place after ``start`` and before ``end`` where a safe cut falls, by looking at every class."""
    classes = class_table()[code_points(text[start:end])]  # [char]
    before, here = classes[:-1], classes[1:]
    ends = (before <= NUMBER) & (here != before)  # [char - 1]: letters or numbers end
    spaces = (before < SPACE) & ((here == SPACE) | (here == BLANK))  # [char - 1]: white space begins
    places = np.flatnonzero(ends | spaces)
    if not places.size:
        return None
    return start + 1 + int(places[-1 if last else 0])
