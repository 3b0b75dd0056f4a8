"""``StageLadder``: every stage of a verification, its error, and where in the stage the error sits."""

from collections.abc import Mapping
from typing import ClassVar

import traitlets
from torch import Tensor

from labkit.errors import UnknownNameError
from labkit.verification.report import Report
from labkit.widgets.base import LabWidget, script
from labkit.widgets.error_view import error_map
from labkit.widgets.stage_view import grid_twin, grid_view
from labkit.words import counted


class StageLadder(LabWidget):
    """Stages down, error across; choose one to see its worst element and a map of its error.

    >>> from labkit.verification import verify
    >>> StageLadder(verify(prompts=["It is a truth"], plant="erf-gelu:2", tokens=0))
    StageLadder(61 stages, differs, at h.2.mlp.post)

    ``actual`` and ``expected`` are taps of the two engines; without them there is no map. Raises UnknownNameError for a
    stage that the report does not hold.
    """

    _esm = script("stages", "stage_ladder")
    KEPT: ClassVar[tuple[str, ...]] = ("selected",)

    grid = traitlets.Dict().tag(sync=True)
    selected = traitlets.Unicode().tag(sync=True)
    """The chosen stage."""
    error_map = traitlets.Dict().tag(sync=True)
    """The map of the chosen stage; empty where there is none."""

    def __init__(
        self,
        report: Report,
        *,
        actual: Mapping[str, Tensor] | None = None,
        expected: Mapping[str, Tensor] | None = None,
        selected: str | None = None,
        key: str | None = None,
    ) -> None:
        self.report = report
        self._actual, self._expected = actual or {}, expected or {}
        names = [stage.name for stage in report.stages]
        if selected is not None and selected not in names:
            raise UnknownNameError.near("stage", selected, names)
        first = selected or report.first_divergence or names[0]
        super().__init__(key=key, grid=grid_view(report), selected=first)
        self.guarded(self._update)
        self.observe(lambda _change: self.guarded(self._update), names="selected")

    def twin(self) -> str:
        return grid_twin(self.grid)

    def _update(self) -> None:
        name = self.selected
        known = name in self._actual and name in self._expected
        self.error_map = dict(error_map(name, self._actual[name], self._expected[name])) if known else {}

    def __repr__(self) -> str:
        return f"StageLadder({counted(len(self.report.stages), 'stage')}, {self.report.verdict}, at {self.selected})"
