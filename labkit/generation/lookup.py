"""Look-up decoding: several greedy ids from one pass, the same ids that one pass each would give.

In: one row of ids. Out: its next greedy id. Where the last few ids stood before in prompt or text, what followed them
there is a draft of what follows now. One pass reads the whole draft; each of its ids that the pass itself would have
chosen is kept. (Saxena 2023, "prompt lookup decoding"; Leviathan et al. 2023 for why nothing is lost.)

A pass over several ids rounds differently from one over a single id. So an id counts only where its logit leads the
second by more than rounding can account for; otherwise the positions not yet read singly are read again one by one,
exactly as plain greedy decoding reads them, and the id is taken from that.
"""

import math
import time
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.generation.choose import Chooser
from labkit.generation.decoder import FastDecoder
from labkit.generation.reading import Reader, Rows
from labkit.model import GPT2

LONGEST_DRAFT = 15
"""Ids in a draft at most: with the newest id, 16 rows a pass."""

NGRAMS = (4, 3, 2)
"""How many last ids are looked for earlier in the text, the longest match first."""

LEAST_ROUNDING = {torch.float64: 64.0, torch.float32: 64.0, torch.bfloat16: 8.0, torch.float16: 16.0}
"""A lead below so many units of the largest logit's rounding is never certain."""

SAFETY = 16.0
"""Nor is one below so many times the largest difference seen between a row read singly and read with others."""

LOSS = 0.03
"""Of the time spent so far, as much may have been lost on drafts, and two steps more; then none is tried."""

LONGEST_PAUSE = 64
"""Single steps after drafts that did not pay, at most."""


class NgramIndex:
    """Where each run of n ids last stood.

    >>> index = NgramIndex()
    >>> index.extend([1, 2, 3, 4, 1, 2])
    >>> index.draft(3)
    [3, 4, 1]
    """

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._after: dict[tuple[int, ...], tuple[int, int]] = {}  # n-gram -> where it ended, last and once before that

    def extend(self, ids: Sequence[int]) -> None:
        """Take in further ids."""
        for token in ids:
            self._ids.append(token)
            end = len(self._ids)
            for n in NGRAMS:
                if end >= n:
                    key = tuple(self._ids[end - n :])
                    self._after[key] = (end, self._after.get(key, (0, 0))[0])

    @property
    def length(self) -> int:
        """Ids taken in."""
        return len(self._ids)

    def draft(self, count: int) -> list[int]:
        """Up to ``count`` ids that followed the text's last ids when they stood before; none where they are new."""
        for n in NGRAMS:
            last, before = self._after.get(tuple(self._ids[-n:]), (0, 0))
            place = before if last == len(self._ids) else last
            if place:
                followed = self._ids[place : place + count]
                while len(followed) < count:  # the earlier place runs into the end: the text has a period
                    followed += self._ids[place : place + count - len(followed)]
                return followed
        return []


class Lookup:
    """A source of greedy ids for one row.

    ``passes``, ``drafted`` and ``kept`` count the passes over drafts, the ids drafted and those kept; ``redone`` the
    positions that were read again singly.
    """

    def __init__(self, model: GPT2, decoder: FastDecoder, reader: Reader, chooser: Chooser) -> None:
        self._model = model
        self._decoder = decoder
        self._reader = reader
        self._chooser = chooser
        self._index = NgramIndex()
        self._ready: deque[int] = deque()
        self._single = 0  # so many positions of the cache hold what plain greedy decoding would hold, bit for bit
        self._width = 4
        self._pause = self._wait = 0
        self._step_seconds = math.inf
        self._spent = self._saved = 0.0  # seconds in all, and seconds that drafts have won or (below 0) lost
        self._noise = 0.0  # the largest difference seen, in units of the row's largest logit
        self._measured = 0  # the cache's length when it was last looked for
        self.passes = self.drafted = self.kept = self.redone = 0

    def __str__(self) -> str:
        return (
            f"look-up: {self.passes} passes over drafts of {self.drafted} ids, {self.kept} kept, "
            f"{self.redone} positions read again singly"
        )

    def next_ids(self, rows: Rows, *, new: int) -> list[int]:
        if not self._ready:
            row = rows[0]
            self._index.extend(row[self._index.length :])
            began, draft = time.perf_counter(), self._draft()
            self._ready.extend(self._read_draft(row, draft, new) if draft else self._read_one(row, new))
            self._spent += time.perf_counter() - began
        return [self._ready.popleft()]

    def _draft(self) -> list[int]:
        if self._wait:
            self._wait -= 1
            return []
        room = self._decoder.cache.capacity - self._decoder.length - 1
        if not self._decoder.length or room < 1 or self._step_seconds == math.inf:
            return []
        if self._saved < -(LOSS * self._spent + 2 * self._step_seconds):
            return []
        return self._index.draft(min(self._width, room))

    def _read_one(self, row: Sequence[int], new: int) -> list[int]:
        decoder, began = self._decoder, time.perf_counter()
        before = decoder.length
        logits = self._reader.read_newest([row], new=new)  # [1, vocab]
        if decoder.length != before + 1:  # the whole text was read, as plain decoding does
            self._single = decoder.length
            return self._choose(logits, row, new)
        if self._single == before:
            self._single += 1
            self._step_seconds = min(self._step_seconds, time.perf_counter() - began)
        elif not self._certain(logits)[0]:
            logits = self._read_again(row, decoder.length)  # [1, vocab]
        return self._choose(logits, row, new)

    def _choose(self, logits: Tensor, row: Sequence[int], new: int) -> list[int]:
        return self._chooser.choose(logits, [row], new=new, read=self._reader.windows([row]), numbers=[0])

    def _read_draft(self, row: Sequence[int], draft: list[int], new: int) -> list[int]:
        decoder, began = self._decoder, time.perf_counter()
        before = decoder.length
        ids = torch.tensor([[row[-1], *draft]], device=self._model.device)  # [1, pos]
        logits = decoder.extend(ids)[0]  # [pos, vocab]
        if before >= 2 * self._measured:
            self._measure(row[-1], before, logits[:1])
        certain = self._certain(logits)
        text, chosen = list(row), list[int]()
        for place, expected in enumerate([*draft, None]):
            here = logits[place : place + 1]  # [1, vocab]
            if not certain[place]:
                exact = self._read_again(text, before + place + 1)  # [1, vocab]
                self._learn_noise(here, exact)
                here = exact  # [1, vocab]
            chosen += self._choose(here, text, new + place)
            if chosen[-1] != expected:
                break
            text.append(chosen[-1])
        decoder.cache.length = before + len(chosen)
        self.passes, self.drafted, self.kept = self.passes + 1, self.drafted + len(draft), self.kept + len(chosen) - 1
        self._learn(seconds=time.perf_counter() - began, gained=len(chosen))
        return chosen

    def _read_again(self, text: Sequence[int], end: int) -> Tensor:
        """Read singly what was not, up to position ``end``; the exact logits [1, vocab] after it."""
        decoder = self._decoder
        newest = text[len(text) - (end - self._single) :]
        decoder.cache.length = self._single
        for token in newest:
            logits = decoder.step(torch.tensor([token], device=self._model.device))  # [1, vocab]
        self.redone += len(newest)
        self._single = end
        return logits

    def _measure(self, token: int, place: int, together: Tensor) -> None:
        """Read the newest token singly as well: by how much its logits [1, vocab] differ from those of the draft's pass."""
        cache = self._decoder.cache
        end, cache.length, self._measured = cache.length, place, max(place, 1)
        alone = self._decoder.step(torch.tensor([token], device=self._model.device))  # [1, vocab]
        cache.length = end
        self._learn_noise(together, alone)

    def _learn_noise(self, together: Tensor, alone: Tensor) -> None:
        difference = (together - alone).abs().max() / alone.abs().max()  # []
        self._noise = max(self._noise, float(difference))

    def _certain(self, logits: Tensor) -> list[bool]:
        """Whether each row's largest logit leads by more than rounding can account for."""
        if logits.shape[-1] == 1:
            return [True] * len(logits)  # a vocabulary of one id leaves no choice
        leads = logits.topk(2, dim=-1).values.tolist()
        least, most = (each.tolist() for each in logits.aminmax(dim=-1))
        unit = max(LEAST_ROUNDING[logits.dtype] * torch.finfo(logits.dtype).eps, SAFETY * self._noise)
        return [
            first - second > unit * max(high, -low)
            for (first, second), low, high in zip(leads, least, most, strict=True)
        ]

    def _learn(self, *, seconds: float, gained: int) -> None:
        """Longer drafts where the pass paid; shorter ones, and a rest before the next, where it did not."""
        self._saved += gained * self._step_seconds - seconds
        if seconds <= gained * self._step_seconds:
            self._pause, self._width = 0, min(LONGEST_DRAFT, 2 * self._width)
        else:
            self._pause, self._width = min(LONGEST_PAUSE, max(2, 2 * self._pause)), max(3, self._width // 2)
        self._wait = self._pause
