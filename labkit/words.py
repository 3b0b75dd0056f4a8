"""Counts in words: the one place where a noun gets its plural."""


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """The count and its noun, in the plural (``noun`` and s, unless given) for any count but one.

    >>> counted(1, "file"), counted(2048, "token"), counted(0, "entry", "entries")
    ('1 file', '2,048 tokens', '0 entries')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
