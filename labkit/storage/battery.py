"""Crafted files: every rule broken at least once, and every oddity that is allowed, each with the code it must get.

In: nothing. Out: small files as bytes. `labkit selftest` writes them and shows each verdict; the tests hold the reader to
them.
"""

from labkit.storage.battery_entries import allowed, duplicates, entries, layouts, metadata, numbers, sizes
from labkit.storage.battery_headers import disguises, header_texts, json_errors, prefixes
from labkit.storage.crafted import Crafted


def crafted_files() -> list[Crafted]:
    """The whole battery.

    >>> files = crafted_files(); len(files) >= 150, len({file.name for file in files}) == len(files)
    (True, True)
    """
    return [
        *prefixes(),
        *disguises(),
        *header_texts(),
        *json_errors(),
        *duplicates(),
        *metadata(),
        *entries(),
        *numbers(),
        *sizes(),
        *layouts(),
        *allowed(),
    ]
