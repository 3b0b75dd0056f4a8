"""Widgets for notebooks, each with a static twin; the only room that knows Jupyter.

A name is looked up when first used, so that the merge stepper loads without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.widgets.fault_bench import FaultBench as FaultBench
    from labkit.widgets.merge_stepper import MergeStepper as MergeStepper
    from labkit.widgets.show import picture as picture

_HOMES = {
    "FaultBench": "labkit.widgets.fault_bench",
    "MergeStepper": "labkit.widgets.merge_stepper",
    "picture": "labkit.widgets.show",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'labkit.widgets' has no attribute {name!r}; its names: {', '.join(_HOMES)}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
