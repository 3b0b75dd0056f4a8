"""``FaultBench``: plant a fault, run the verification, and see which stages change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import traitlets

from labkit.load import embedded
from labkit.verification import verify
from labkit.verification.faults import FAULTS
from labkit.verification.report import Report
from labkit.widgets.base import LabWidget, script
from labkit.widgets.stage_view import grid_twin, grid_view

PROMPT = "It was a fine morning, and the whole family had come down to breakfast."
NO_FAULT = "none"


class FaultBench(LabWidget):
    """Choose a fault, a block and a prompt; the grid shows every stage, and which one is to blame.

    ``folder`` is a checkpoint (default: the embedded one). The verification runs when the bench is made and whenever
    a choice changes; ``report`` is the last one. Raises nothing: what goes wrong is shown in ``error``.
    """

    _esm = script("stages", "fault_bench")
    KEPT: ClassVar[tuple[str, ...]] = ("choice",)

    faults = traitlets.List(traitlets.Dict()).tag(sync=True)
    choice = traitlets.Dict().tag(sync=True)
    """What the user chose: fault, block, prompt."""
    grid = traitlets.Dict().tag(sync=True)
    """The view record of the last run."""
    findings = traitlets.List(traitlets.Unicode()).tag(sync=True)
    """What the diagnosis found, a sentence each."""
    busy = traitlets.Bool().tag(sync=True)

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        fault: str = NO_FAULT,
        block: int = 0,
        prompt: str = PROMPT,
        key: str | None = None,
        run: Callable[..., Report] = verify,
    ) -> None:
        self._folder = embedded() if folder is None else Path(folder)
        self._run = run
        self.report: Report | None = None
        super().__init__(
            key=key,
            faults=[{"name": NO_FAULT, "mistake": "nothing is planted"}]
            + [{"name": each.name, "mistake": each.mistake} for each in FAULTS.values()],
            choice={"fault": fault, "block": block, "prompt": prompt},
        )
        self.guarded(self._verify)
        self.observe(lambda _change: self.guarded(self._verify), names="choice")

    def twin(self) -> str:
        return grid_twin(self.grid) if self.grid else ""

    def _verify(self) -> None:
        choice: dict[str, Any] = self.choice
        self.busy = True
        try:
            plant = None if choice["fault"] == NO_FAULT else f"{choice['fault']}:{choice['block']}"
            self.report = self._run(self._folder, prompts=[choice["prompt"]], plant=plant, tokens=0)
            self.findings = [str(finding) for finding in self.report.findings]
            self.grid = grid_view(self.report)
        finally:
            self.busy = False

    def __repr__(self) -> str:
        fault = self.choice["fault"]
        planted = "nothing planted" if fault == NO_FAULT else f"{fault} planted in block {self.choice['block']}"
        if self.report is None:
            return f"FaultBench({planted}, no verdict)"
        return f"FaultBench({planted}, {self.report.verdict}, first divergence {self.report.first_divergence})"
