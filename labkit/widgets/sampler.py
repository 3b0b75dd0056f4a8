"""``Sampler``: what temperature, top-k, top-p and min-p do to the distribution of the next token."""

from typing import Any, ClassVar

import torch
import traitlets
from torch import Tensor

from labkit.errors import ArgumentError
from labkit.generation.sampling import draw
from labkit.model import GPT2
from labkit.tokenizer import Tokenizer
from labkit.widgets.base import LabWidget, script
from labkit.widgets.companions import tokenizer_of
from labkit.widgets.sampler_view import SamplerSettings, distributions, sampler_twin, sampler_view

LEAST_TEMPERATURE = 0.05
"""At 0 nothing is drawn: the largest logit wins."""


class Sampler(LabWidget):
    """Sliders, and beside them the distribution before and after each step.

    >>> from labkit.load import load_gpt2
    >>> Sampler(load_gpt2(), "It is a", top_k=3).view["kept"][2]
    3

    What goes wrong is shown in ``error``.
    """

    _esm = script("sampler")
    KEPT: ClassVar[tuple[str, ...]] = ("choice",)

    choice = traitlets.Dict().tag(sync=True)
    """What the user chose: prompt, temperature, top_k, top_p, min_p."""
    view = traitlets.Dict().tag(sync=True)
    draws = traitlets.Int().tag(sync=True)
    """How often a token was drawn; the number is the draw's seed."""
    drawn = traitlets.Unicode().tag(sync=True)

    def __init__(
        self,
        model: GPT2,
        prompt: str = "It is a",
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        tokenizer: Tokenizer | None = None,
        key: str | None = None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer or tokenizer_of(model)
        self._logits: tuple[str, Tensor] | None = None
        choice = {"prompt": prompt, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        super().__init__(key=key, choice=choice)
        self.guarded(self._update)
        self.observe(lambda _change: self.guarded(self._update), names="choice")
        self.observe(lambda _change: self.guarded(self._draw), names="draws")

    def twin(self) -> str:
        return sampler_twin(self.view) if self.view else ""

    def _update(self) -> None:
        self.view = sampler_view(self._after_prompt(), self._settings(), self._tokenizer)

    def _draw(self) -> None:
        last = distributions(self._after_prompt(), self._settings())[-1]  # [vocab]
        token = draw(last.log(), torch.Generator().manual_seed(self.draws))
        self.drawn = f"draw {self.draws}: {self._tokenizer.decode([token])!r} (id {token})"

    def _settings(self) -> SamplerSettings:
        choice: dict[str, Any] = self.choice
        temperature = float(choice["temperature"])
        if not temperature >= LEAST_TEMPERATURE:
            raise ArgumentError(
                "the temperature is too low to draw", expected=f"{LEAST_TEMPERATURE} or more", got=temperature
            )
        return SamplerSettings(
            temperature=temperature,
            top_k=int(choice["top_k"]),
            top_p=float(choice["top_p"]),
            min_p=float(choice["min_p"]),
        )

    def _after_prompt(self) -> Tensor:
        """The logits [vocab] after the prompt, computed once a prompt."""
        prompt = str(self.choice["prompt"])
        if self._logits is None or self._logits[0] != prompt:
            ids = self._tokenizer.encode(prompt)
            if not ids:
                raise ArgumentError("the prompt has no tokens", fix="type a character")
            self._logits = (prompt, self._model.run(ids, logits="last").logits[0, -1])  # [vocab]
        return self._logits[1]

    def __repr__(self) -> str:
        choice = self.choice
        settings = f"temperature {choice['temperature']:g}, top_k {choice['top_k']}, top_p {choice['top_p']:g}"
        return f"Sampler({choice['prompt']!r}, {settings}, min_p {choice['min_p']:g})"
