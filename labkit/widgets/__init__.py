"""Widgets for notebooks, each with a static twin; the only room that knows Jupyter.

A name is looked up when first used, so that the merge stepper loads without torch.
"""

from typing import TYPE_CHECKING

from labkit.lazy import lazy_names

if TYPE_CHECKING:
    from labkit.widgets.attention_viewer import AttentionViewer as AttentionViewer
    from labkit.widgets.fault_bench import FaultBench as FaultBench
    from labkit.widgets.header_explorer import HeaderExplorer as HeaderExplorer
    from labkit.widgets.hex_viewer import HexViewer as HexViewer
    from labkit.widgets.merge_stepper import MergeStepper as MergeStepper
    from labkit.widgets.sampler import Sampler as Sampler
    from labkit.widgets.show import picture as picture
    from labkit.widgets.stage_ladder import StageLadder as StageLadder

_HOMES = {
    "AttentionViewer": "labkit.widgets.attention_viewer",
    "FaultBench": "labkit.widgets.fault_bench",
    "HeaderExplorer": "labkit.widgets.header_explorer",
    "HexViewer": "labkit.widgets.hex_viewer",
    "MergeStepper": "labkit.widgets.merge_stepper",
    "Sampler": "labkit.widgets.sampler",
    "StageLadder": "labkit.widgets.stage_ladder",
    "picture": "labkit.widgets.show",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
