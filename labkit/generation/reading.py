"""One pass, one id a row: the plain way from what the rows hold to their next ids.

In: all ids so far. Out: the next id of each row. ``Lookup`` (lookup.py) is the other way, with several ids a pass.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
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


class Reader:
    """What of each row the model reads: all of it, until the row is longer than n_positions.

    A row slides when it is full itself, whatever stands beside it: then the second half of n_positions is read again
    from position 0, and ``note`` is told. Rows that are not ``running`` any more take part with their last id alone.
    """

    def __init__(
        self, model: GPT2, decoder: Decoder, note: Callable[[str], None], *, running: AbstractSet[int]
    ) -> None:
        self._limit = model.config.n_positions
        self._device = model.device
        self._decoder = decoder
        self._note = note
        self.running = running
        self._begins: list[int] = []  # where each row's window begins

    def read_newest(self, rows: Rows, *, new: int) -> Tensor:
        """Logits [batch, vocab] after the rows' last ids: one step, or whole windows where nothing is read or fits."""
        if self._decoder.length and self._decoder.length < self._limit:
            return self._decoder.step(torch.tensor([row[-1] for row in rows], device=self._device))  # [batch, vocab]
        self._begins = self._begins or [0] * len(rows)
        for number, row in enumerate(rows):
            if number not in self.running:
                self._begins[number] = len(row) - 1
            elif len(row) - self._begins[number] > self._limit:
                self._slide(number, row, new, several=len(rows) > 1)
        return self._decoder.prefill(self.windows(rows))  # [batch, vocab]

    def windows(self, rows: Rows) -> list[Sequence[int]]:
        """The ids of each row that logits come from."""
        return [row[begin:] for row, begin in zip(rows, self._begins, strict=True)]

    def _slide(self, number: int, row: Sequence[int], new: int, *, several: bool) -> None:
        keep = max(1, self._limit // 2)
        self._begins[number] = len(row) - keep
        whose = f"the window of prompt {number}" if several else "the window"
        self._note(f"at new token {new} {whose} slid: the last {keep} tokens are read from position 0")


class PassByPass:
    """Reads the newest ids, chooses from the logits; a break between the two repeats nothing.

    A row that has ended takes part in the passes of the others, and nothing is chosen or judged from its logits.
    """

    def __init__(self, reader: Reader, chooser: Chooser) -> None:
        self._reader = reader
        self._chooser = chooser
        self._logits: Tensor | None = None

    def next_ids(self, rows: Rows, *, new: int) -> list[int]:
        if self._logits is None:
            self._logits = self._reader.read_newest(rows, new=new)  # [batch, vocab]
        numbers = sorted(self._reader.running)
        windows = self._reader.windows(rows)
        chosen = self._chooser.choose(
            self._logits if len(numbers) == len(rows) else self._logits[numbers],  # [running, vocab]
            [rows[number] for number in numbers],
            new=new,
            read=[windows[number] for number in numbers],
            numbers=numbers,
        )
        self._logits = None
        ids = [row[-1] for row in rows]
        for number, token in zip(numbers, chosen, strict=True):
            ids[number] = token
        return ids
