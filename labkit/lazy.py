"""Public names that a package looks up when they are first used, so that importing it loads nothing heavy (PEP 562)."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], *, ready: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of ``package``, whose public names are those of ``homes`` (name -> module) and
    those that are ``ready`` in it.

    >>> look_up, names = lazy_names("shapes", {"Fraction": "fractions"}, ready=["sides"])
    >>> look_up("Fraction")(1, 3)
    Fraction(1, 3)
    >>> names()
    ['Fraction', 'sides']
    """
    public = sorted([*homes, *ready])

    def look_up(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; public names: {', '.join(public)}")
        return getattr(importlib.import_module(homes[name]), name)

    return look_up, lambda: list(public)
