"""The notebooks' exercises: an answer goes in, and what is wrong with it comes out, never the answer.

>>> from labkit.exercises import check
>>> check("01.2", 287_209_472)
01.2 not yet: that counts from the start of the data section, not of the file
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.exercises.task import Task as Task
    from labkit.exercises.task import Verdict as Verdict
    from labkit.exercises.task import check as check
    from labkit.exercises.zoo import zoo_trace as zoo_trace

_HOMES = {
    "Task": "labkit.exercises.task",
    "Verdict": "labkit.exercises.task",
    "check": "labkit.exercises.task",
    "zoo_trace": "labkit.exercises.zoo",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'labkit.exercises' has no attribute {name!r}; its names: {', '.join(_HOMES)}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
