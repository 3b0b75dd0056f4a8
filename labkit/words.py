"""Counts and lists in words: the one place where a noun gets its plural."""

from collections.abc import Iterable


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """The count and its noun, in the plural (``noun`` and s, unless given) for any count but one.

    >>> counted(1, "file"), counted(2048, "token"), counted(0, "entry", "entries")
    ('1 file', '2,048 tokens', '0 entries')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def every(count: int, noun: str) -> str:
    """All of them in words, of one or more.

    >>> every(61, "stage"), every(1, "stage")
    ('all 61 stages', 'the one stage')
    """
    return f"the one {noun}" if count == 1 else f"all {count} {noun}s"


def listed(names: Iterable[str], *, most: int) -> str:
    """Names in a sentence; of more than ``most`` (at least 2) the first ones and how many are left.

    >>> listed(["a"], most=2), listed(["a", "b"], most=2), listed(["a", "b", "c", "d"], most=2)
    ('a', 'a and b', 'a, b and 2 more')
    """
    every = list(names)
    if len(every) <= 1:
        return "".join(every)
    if len(every) <= most:
        return f"{', '.join(every[:-1])} and {every[-1]}"
    return f"{', '.join(every[:most])} and {len(every) - most} more"
