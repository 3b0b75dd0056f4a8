"""Freed memory -> the system: glibc keeps what threads freed, and a walk down a long prompt frees gigabytes."""

import ctypes
import sys
from collections.abc import Callable


def give_back() -> None:
    """Hand memory that was freed back to the system, where the C library can."""
    if _TRIM is not None:
        _TRIM(0)


def _malloc_trim() -> Callable[[int], object] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


_TRIM = _malloc_trim()
