"""The class of every code point, which is all that GPT-2's split looks at.

In: the frozen tables of unicode16.py. Out: one byte per code point. Python's own ``re``, ``str.isspace`` and the
``regex`` module are not asked: each has another idea of a letter or a space.
"""

from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from labkit.tokenizer import unicode16

LETTER: Final = 0
NUMBER: Final = 1
OTHER: Final = 2
SPACE: Final = 3  # white space that is not U+0020
BLANK: Final = 4  # U+0020, the one space that a piece may begin with

CODE_POINTS: Final = 0x110000
COUNTS: Final = {"LETTERS": 141_028, "NUMBERS": 1_911, "SPACES": 25}  # Unicode 16, as tiktoken 0.14 counts them
STAND_INS: Final = b"z0!\t "  # one ASCII character of each class, in the order of the numbers above


def parse_ranges(text: str) -> list[tuple[int, int]]:
    """Inclusive ranges from their hexadecimal text.

    >>> parse_ranges("41-5A AA")
    [(65, 90), (170, 170)]
    """
    ranges = []
    for part in text.split():
        low, _, high = part.partition("-")
        ranges.append((int(low, 16), int(high or low, 16)))
    return ranges


@cache
def class_table() -> npt.NDArray[np.uint8]:
    """The class of each code point, indexed by it; read-only.

    >>> [int(class_table()[ord(c)]) for c in "a1! \\n"]
    [0, 1, 2, 4, 3]
    >>> int(class_table()[0x1C])  # a separator control: Python calls it white space, Unicode does not
    2
    """
    table = np.full(CODE_POINTS, OTHER, np.uint8)  # [code_point]
    for value, name in ((LETTER, "LETTERS"), (NUMBER, "NUMBERS"), (SPACE, "SPACES")):
        for low, high in parse_ranges(getattr(unicode16, name)):
            table[low : high + 1] = value
    found = {name: int(np.count_nonzero(table == value)) for value, name in enumerate(("LETTERS", "NUMBERS"))}
    found["SPACES"] = int(np.count_nonzero(table == SPACE))
    assert found == COUNTS, f"unicode16.py is damaged: {found}"
    table[0x20] = BLANK
    table.flags.writeable = False
    return table


@cache
def stand_in_table() -> npt.NDArray[np.uint8]:
    """An ASCII stand-in of the same class for each code point; ASCII stands for itself. Read-only."""
    table = np.frombuffer(STAND_INS, np.uint8)[class_table()]  # [code_point]
    table[:128] = np.arange(128)
    table.flags.writeable = False
    return table


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """The scalar values of a text without surrogates."""
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)  # [char]


def stand_in(text: str) -> str:
    """The same text in ASCII, each character replaced by one of its class; same length.

    >>> stand_in("año €5 日本")
    'azo !5 zz'
    """
    if text.isascii():
        return text
    return stand_in_table()[code_points(text)].tobytes().decode("ascii")
