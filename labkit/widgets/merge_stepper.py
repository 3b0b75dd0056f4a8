"""``MergeStepper``: a text typed in, and the merges of its pieces one at a time."""

from pathlib import Path
from typing import ClassVar, Self

import traitlets

from labkit.tokenizer import Tokenizer
from labkit.widgets.base import LabWidget, script
from labkit.widgets.merge_view import MergeView, merge_twin, merge_view, read_state, write_state


class MergeStepper(LabWidget):
    """Step through byte-pair merges; with ``beside`` two texts side by side.

    >>> stepper = MergeStepper(" world", step=2)
    >>> stepper
    MergeStepper(' world', piece 0, step 2 of 5)
    >>> [symbol["text"] for symbol in stepper.views[0]["states"][2]["symbols"]]
    ['Ġw', 'or', 'l', 'd']

    ``tokenizer`` is a ``Tokenizer`` or a folder; GPT-2's unless given. Raises what ``Tokenizer`` raises.
    """

    _esm = script("merge_stepper")
    KEPT: ClassVar[tuple[str, ...]] = ("panels",)

    panels = traitlets.List(traitlets.Dict()).tag(sync=True)
    """What the user chose, one entry a text: text, piece, step."""
    views = traitlets.List(traitlets.Dict()).tag(sync=True)
    """What each panel shows."""

    def __init__(
        self,
        text: str = "The tokenizer's merges",
        *,
        piece: int = 0,
        step: int = 0,
        beside: str | None = None,
        tokenizer: Tokenizer | str | Path | None = None,
        key: str | None = None,
    ) -> None:
        if isinstance(tokenizer, str | Path):
            tokenizer = Tokenizer.from_folder(tokenizer)
        self._tokenizer = tokenizer or Tokenizer.gpt2()
        self._made: dict[tuple[str, int], MergeView] = {}
        panels = [{"text": text, "piece": piece, "step": step}]
        if beside is not None:
            panels.append({"text": beside, "piece": piece, "step": step})
        super().__init__(key=key, panels=panels)
        self.guarded(self._update)
        self.observe(lambda _change: self.guarded(self._update), names="panels")

    @classmethod
    def from_state(cls, state: str, *, tokenizer: Tokenizer | str | Path | None = None) -> Self:
        """The stepper as it stood when its state was copied; ArgumentError where the string is no state.

        >>> MergeStepper.from_state('{"format": "labkit-merges-1", "text": " world", "piece": 0, "step": 5}')
        MergeStepper(' world', piece 0, step 5 of 5)
        """
        return cls(**read_state(state), tokenizer=tokenizer)

    @property
    def state(self) -> str:
        """The first text's state as a line for a bug report; ``from_state`` takes it."""
        panel = self.panels[0]
        return write_state(panel["text"], panel["piece"], panel["step"])

    def twin(self) -> str:
        return "".join(merge_twin(view) for view in self.views)

    def _update(self) -> None:
        views = [self._view(str(panel["text"]), int(panel["piece"])) for panel in self.panels]
        if views != self.views:
            self.views = views

    def _view(self, text: str, piece: int) -> MergeView:
        if (text, piece) not in self._made:
            view = merge_view(text, piece, self._tokenizer)
            self._made = dict([*self._made.items(), ((text, piece), view)][-8:])
        return self._made[text, piece]

    def __repr__(self) -> str:
        said = []
        for panel, view in zip(self.panels, self.views, strict=False):
            steps = max(len(view["states"]) - 1, 0)
            said.append(f"{panel['text']!r}, piece {view['piece']}, step {min(panel['step'], steps)} of {steps}")
        return f"{type(self).__name__}({'; '.join(said)})"
