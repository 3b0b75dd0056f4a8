"""One pass, one id a row: the plain way from what the rows hold to their next ids.

In: all ids so far. Out: the next id of each row. ``Lookup`` (lookup.py) is the other way, with several ids a pass.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from labkit.generation.choose import Chooser
from labkit.generation.decoder import Decoder
from labkit.model import GPT2

Rows = Sequence[Sequence[int]]


class Source(Protocol):
    """Where next ids come from."""

    def next_ids(self, rows: Rows, *, new: int) -> list[int]:
        """The next id of each row, ``new`` ids of each having been generated."""


class PassByPass:
    """Reads the newest ids, chooses from the logits; a break between the two repeats nothing."""

    def __init__(self, model: GPT2, decoder: Decoder, chooser: Chooser, note: Callable[[str], None]) -> None:
        self._model = model
        self._decoder = decoder
        self._chooser = chooser
        self._note = note
        self._logits: Tensor | None = None

    def next_ids(self, rows: Rows, *, new: int) -> list[int]:
        if self._logits is None:
            self._logits = read_newest(self._model, self._decoder, rows, new, self._note)  # [batch, vocab]
        ids = self._chooser.choose(self._logits, rows, new=new)
        self._logits = None
        return ids


def read_newest(model: GPT2, decoder: Decoder, rows: Rows, new: int, note: Callable[[str], None]) -> Tensor:
    """Logits [batch, vocab] after the rows' last ids: one step, or the whole text where nothing is read or fits.

    Past n_positions the second half of the window is read again from position 0, and ``note`` is told.
    """
    limit = model.config.n_positions
    if decoder.length and decoder.length < limit:
        return decoder.step(torch.tensor([row[-1] for row in rows], device=model.device))  # [batch, vocab]
    longest = max(map(len, rows))
    keep = limit if longest <= limit else max(1, limit // 2)
    if longest > keep:
        note(f"at new token {new} the window slid: the last {keep} tokens are read from position 0")
    return decoder.prefill([row[-keep:] for row in rows])  # [batch, vocab]
