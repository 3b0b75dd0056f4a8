"""``AttentionViewer``: what each head of a block looks at, for a prompt typed in."""

from typing import ClassVar

import traitlets

from labkit.model import GPT2
from labkit.tokenizer import Tokenizer
from labkit.widgets.attention_view import attention_twin, attention_view
from labkit.widgets.base import LabWidget, script
from labkit.widgets.companions import tokenizer_of


class AttentionViewer(LabWidget):
    """Heads as small pictures, one of them large with tokens on both axes.

    >>> from labkit.load import load_gpt2
    >>> AttentionViewer(load_gpt2(), "It is a truth", block=1, head=2)
    AttentionViewer('It is a truth', block 1, head 2)

    ``tokenizer`` is the one beside the checkpoint unless given; ArgumentError where there is none.
    """

    _esm = script("attention_viewer")
    KEPT: ClassVar[tuple[str, ...]] = ("choice",)

    choice = traitlets.Dict().tag(sync=True)
    """What the user chose: prompt, block, head."""
    view = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        model: GPT2,
        prompt: str = "It is a truth universally acknowledged",
        *,
        block: int = 0,
        head: int = 0,
        tokenizer: Tokenizer | None = None,
        key: str | None = None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer or tokenizer_of(model)
        self._shown: tuple[str, int] | None = None
        super().__init__(key=key, choice={"prompt": prompt, "block": block, "head": head})
        self.guarded(self._update)
        self.observe(lambda _change: self.guarded(self._update), names="choice")

    def twin(self) -> str:
        return attention_twin(self.view, min(self.choice["head"], self.view["heads"] - 1)) if self.view else ""

    def _update(self) -> None:
        wanted = (str(self.choice["prompt"]), int(self.choice["block"]))
        if wanted == self._shown:
            return
        self.view = attention_view(self._model, self._tokenizer, *wanted)
        self._shown = wanted

    def __repr__(self) -> str:
        choice = self.choice
        return f"AttentionViewer({choice['prompt']!r}, block {choice['block']}, head {choice['head']})"
