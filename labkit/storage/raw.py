"""What the stages of the header's parser share: the field names, an entry as it stands, and a name made fit for a message."""

from typing import NamedTuple

METADATA = "__metadata__"
FIELDS = ("dtype", "shape", "data_offsets")
SHOWN_CHARACTERS = 80
"""Characters of a name or value that a message shows."""


class RawEntry(NamedTuple):
    """One entry as it stands in the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def shown(text: object) -> str:
    """A name or value for a message: quoted, escaped, and cut where it is very long.

    >>> shown("a" * 200)[-22:]
    "aa'... 200 characters)"
    """
    whole = str(text)
    quoted = repr(whole[:SHOWN_CHARACTERS])
    return quoted if len(whole) <= SHOWN_CHARACTERS else f"({quoted}... {len(whole)} characters)"
