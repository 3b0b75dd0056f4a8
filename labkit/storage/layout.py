"""Entries together, against the file: holes, overlaps, bytes that no tensor covers, tensors beyond the end.

In: entries that are sound by themselves, and the size of the data section. Out: the layout's defects.
"""

from collections.abc import Iterator, Mapping

from labkit.errors import FormatError
from labkit.outside import shown
from labkit.storage.raw import RawEntry


def layout_defects(
    entries: Mapping[str, RawEntry], data_nbytes: int, where: str, *, partial: bool
) -> Iterator[FormatError]:
    """Holes, overlaps and what lies beyond the data section, over the entries that are sound by themselves.

    ``partial``: some entries could not be read, so that a hole or bytes left over need not be the layout's fault.
    """
    position, previous, beyond = 0, "", 0
    last = None
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        place = f"{where}, tensor {shown(name)}"
        if end > data_nbytes:
            beyond += 1
            last = (name, begin, end)
        if begin > position and not partial:
            got = f"{begin - position} bytes at [{position}, {begin})"
            yield FormatError("layout-hole", "bytes in front of it belong to no tensor", where=place, got=got)
        elif begin < position:
            got = f"[{begin}, {end}), the one in front ends at {position}"
            yield FormatError("layout-overlap", f"it overlaps tensor {shown(previous)}", where=place, got=got)
        if end >= position:
            position, previous = end, name
    if last is not None:
        name, begin, end = last
        more = f" and {beyond - 1} more" if beyond > 1 else ""
        yield FormatError(
            "data-short",
            f"it{more} ends beyond the data section",
            where=f"{where}, tensor {shown(name)}",
            expected=f"{end} bytes of data for [{begin}, {end})",
            got=f"{data_nbytes} bytes",
            fix="the file is truncated, or the offsets are wrong; fetch it again",
        )
    elif position < data_nbytes and not partial:
        owner = f"after tensor {shown(previous)}" if entries else "and no tensor"
        got = f"{data_nbytes - position} bytes at [{position}, {data_nbytes}) {owner}"
        what = "bytes at the end belong to no tensor"
        yield FormatError("data-trailing", what, where=where, expected=f"{position} bytes of data", got=got)
