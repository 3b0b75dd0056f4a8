"""What the stages of the header's parser share: the field names, and an entry as it stands."""

from typing import NamedTuple

METADATA = "__metadata__"
FIELDS = ("dtype", "shape", "data_offsets")


class RawEntry(NamedTuple):
    """One entry as it stands in the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]
