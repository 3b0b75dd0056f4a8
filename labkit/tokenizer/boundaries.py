"""Where pieces begin, for a whole block of UTF-8 at once.

In: UTF-8. Out: a flag for each byte, set where a piece begins. Whether a piece begins at a character depends on three classes
only: of the character before, of this one, and of the one after; contractions are patched in at apostrophes. Every
byte of a character has the character's class, so that it all runs over bytes. split.py says the same with a pattern.
"""

from collections.abc import Iterator
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from labkit.tokenizer.classes import BLANK, SPACE, class_table

APOSTROPHE: Final = 0x27
LEAD: Final = 0xC0  # the first byte of a character of several bytes is at least this
DENSE: Final = 4  # long pieces that fill more than this part of a block are many
STEP: Final = 1 << 16  # bytes looked at together: what comes about on the way then stays small
PADDING: Final = bytes(16)  # so that looking a few bytes ahead stays inside

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Offsets = npt.NDArray[np.int64]


def piece_starts(data: bytes) -> Flags:
    """Whether a piece begins at each byte; ``data`` is UTF-8 and not empty.

    >>> np.flatnonzero(piece_starts("año €5's".encode())).tolist()
    [0, 4, 8, 9]
    """
    padded = np.frombuffer(data + PADDING, np.uint8)  # [byte + 16]
    classes, wide = byte_classes(data, padded)
    starts = _class_starts(classes)  # [byte]
    if wide.size:
        _patch_wide_spaces(starts, classes, wide, padded)
    _patch_contractions(starts, padded)
    return starts


def byte_classes(data: bytes, padded: Bytes) -> tuple[Bytes, Offsets]:
    """The class of every byte's character, and the offsets of white space that takes more than one byte."""
    classes = np.frombuffer(bytearray(data.translate(_ascii_classes())), np.uint8)  # [byte]
    if data.isascii():
        return classes, np.empty(0, np.int64)
    held = padded[: len(data)]  # [byte]
    leads = np.flatnonzero(held >= LEAD)  # [lead]
    found = class_table().take(_code_points(padded, leads))  # [lead]
    classes[leads] = found
    later = (held & LEAD) == 0x80  # [byte]: the second byte of a character, or one after it
    longest = 4 if held.max() >= 0xF0 else 3
    for _ in range(longest - 1):  # hand the class on, from each byte to the next of its character
        classes[1:] |= classes[:-1] * later[1:]
    return classes, leads[found == SPACE]


@cache
def _ascii_classes() -> bytes:
    return class_table()[:128].tobytes() + bytes(128)


def _code_points(padded: Bytes, leads: Offsets) -> npt.NDArray[np.uint32]:
    """The scalar values of the characters of two to four bytes that begin at ``leads``."""
    windows = np.ndarray((len(padded) - 3,), ">u4", padded.data, strides=(1,))  # [byte]: the 4 bytes from there
    four = windows.take(leads).astype(np.uint32)  # [lead]
    values = ((four >> 24) & 0x1F) << 6 | (four >> 16) & 0x3F  # [lead], as two bytes mean it
    if four.max(initial=0) >= 0xE0000000:
        values = np.where(four < 0xE0000000, values, (values & 0x3FF) << 6 | (four >> 8) & 0x3F)
    if four.max(initial=0) >= 0xF0000000:
        values = np.where(four < 0xF0000000, values, (values & 0x7FFF) << 6 | four & 0x3F)
    return values.astype(np.uint32, copy=False)


def _class_starts(classes: Bytes) -> Flags:
    """Boundaries by class alone.

    White space after white space begins a piece only as the last before text (that text did not take it). Anything
    else begins one where its class differs from the one before, unless U+0020 stands before and is taken along.
    """
    space = classes >= SPACE  # [byte]
    starts = np.ones(len(classes), bool)  # [byte]
    before, here = classes[:-1], classes[1:]
    inner = space[1:] & space[:-1]  # [byte - 1]
    rest = starts[1:]
    np.not_equal(here, before, out=rest)
    rest &= before != BLANK
    rest &= ~inner
    inner[:-1] &= ~space[2:]
    inner[-1:] = False  # nothing follows the last
    rest |= inner
    return starts


def _patch_wide_spaces(starts: Flags, classes: Bytes, wide: Offsets, padded: Bytes) -> None:
    """White space of several bytes counts as one character."""
    first = padded[wide]  # [wide]
    size = 2 + (first >= 0xE0)  # [wide]; no white space takes four bytes
    for step in (1, 2):
        starts[wide[size > step] + step] = False
    end = wide + size  # [wide]
    inside = end < len(classes)  # [wide]
    text_follows = inside & (classes[np.where(inside, end, 0)] < SPACE)  # [wide]
    text_before = (wide == 0) | (classes[wide - 1] < SPACE)  # [wide]
    starts[wide] = text_before | text_follows


def _patch_contractions(starts: Flags, padded: Bytes) -> None:
    """An apostrophe that begins a piece takes s, t, m, d, ll, ve or re along, and nothing more."""
    places = np.flatnonzero(padded[: len(starts)] == APOSTROPHE)  # [place]
    places = places[starts[places]]
    if not places.size:
        return
    first, second = padded[places + 1], padded[places + 2]  # [place]
    short = (first == ord("s")) | (first == ord("t")) | (first == ord("m")) | (first == ord("d"))  # [place]
    long = ((first == ord("l")) & (second == ord("l"))) | (
        ((first == ord("v")) | (first == ord("r"))) & (second == ord("e"))
    )  # [place]
    taken = np.flatnonzero(short | long)
    places = places[taken]
    starts[places + 1] = False
    ends = places + 2 + long[taken]  # [taken]
    starts[ends[ends < len(starts)]] = True


def cut_long_pieces(starts: Flags, data: bytes, hard: Flags, *, longest: int) -> None:
    """Set more flags inside pieces longer than ``longest`` bytes: where no merge crosses two bytes. In place.

    ``hard`` [65536] says of two bytes that no token holds them side by side, so that cutting there changes no id.
    """
    begins = np.flatnonzero(starts)  # [piece]
    lengths = np.diff(begins, append=len(data))  # [piece]
    long = np.flatnonzero(lengths > longest)  # [long]
    if not long.size:
        return
    held = np.frombuffer(data, np.uint8)  # [byte]
    inside = lengths[long] - 1  # [long]: places where it could be cut
    total = np.cumsum(inside)  # [long]
    if total[-1] > len(data) // DENSE:  # looking at every place costs less than listing those inside
        for first in range(0, len(data) - 1, STEP):
            some = held[first : first + STEP + 1]  # [byte]
            starts[first + 1 : first + len(some)] |= hard.take(some[:-1].astype(np.uint16) << 8 | some[1:])
        return
    places = np.repeat(begins[long] + 1 - (total - inside), inside) + np.arange(int(total[-1]))  # [place]
    starts[places[hard.take(held[places - 1].astype(np.uint16) << 8 | held[places])]] = True


def ranges_of(starts: Flags, pieces: int) -> Iterator[tuple[int, int]]:
    """Stretches of bytes, cut where pieces begin, of about as many pieces each.

    >>> list(ranges_of(np.array([1, 0, 1, 1, 0, 1, 0], bool), 2))
    [(0, 3), (3, 7)]
    """
    count = int(np.count_nonzero(starts))
    step = max(1, len(starts) * pieces // count)
    low = 0
    while low < len(starts):
        rest = starts[low + step :]  # [byte]
        further = int(rest.argmax()) if rest.any() else len(rest)
        high = min(low + step + further, len(starts))
        yield low, high
        low = high
