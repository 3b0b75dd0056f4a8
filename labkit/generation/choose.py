"""Which id comes next in each row, from a pass's logits; logits that are not finite are refused, never chosen from."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.errors import ArgumentError, NonFiniteError, OutOfRangeError
from labkit.generation.decoder import pad_left
from labkit.generation.sampling import draw, processed
from labkit.generation.settings import Settings
from labkit.model import GPT2


class Chooser:
    """Chooses ids by ``settings``; a row draws from a generator of its own, seeded with the seed plus its number.

    ``seed`` is the one in use: the settings' own, or a fresh one that repeats the text when given again.
    """

    def __init__(self, model: GPT2, settings: Settings, *, batch: int) -> None:
        for each in settings.stop_ids:
            if each >= model.config.vocab_size:
                raise OutOfRangeError(
                    "the id is beyond the vocabulary",
                    where="stop_ids",
                    expected=f"0 to {model.config.vocab_size - 1}",
                    got=each,
                )
        if settings.min_tokens and settings.tokens and len(set(settings.stop_ids)) == model.config.vocab_size:
            raise ArgumentError(
                "every id is a stop id, and none of them may come before min_tokens",
                where="stop_ids",
                expected="an id of the vocabulary left out, or min_tokens 0",
                got=f"all {model.config.vocab_size} ids, min_tokens {settings.min_tokens}",
            )
        self._model = model
        self._settings = settings
        self.seed: int | None = None
        self._generators: list[torch.Generator] = []
        if settings.sampled:
            self.seed = torch.Generator().seed() % 2**32 if settings.seed is None else settings.seed
            device = model.device
            self._generators = [torch.Generator(device=device).manual_seed(self.seed + row) for row in range(batch)]

    def choose(
        self,
        logits: Tensor,
        rows: Sequence[Sequence[int]],
        *,
        new: int,
        read: Sequence[Sequence[int]],
        numbers: Sequence[int],
    ) -> list[int]:
        """The next id of each row: logits [batch, vocab], ``rows`` all ids so far, ``new`` of them generated.

        ``read`` is what the logits were computed from: the rows, or where a window slid their ends. ``numbers`` are
        the rows' numbers, by which each draws from its own generator.
        """
        if not math.isfinite(float(logits.sum(dtype=torch.float32))):
            self._refuse_nonfinite(logits, read)
        settings = self._settings
        if settings.plain or (
            not settings.sampled and settings.repetition_penalty == 1.0 and new >= settings.min_tokens
        ):
            ids: list[int] = logits.argmax(-1).tolist()
            return ids
        chosen = []
        for number, each, seen in zip(numbers, logits, rows, strict=True):
            row = processed(each, seen, settings, new=new)  # [vocab]
            chosen.append(draw(row, self._generators[number]) if settings.sampled else int(row.argmax()))
        return chosen

    def _refuse_nonfinite(self, logits: Tensor, read: Sequence[Sequence[int]]) -> None:
        bad = ~torch.isfinite(logits)  # [batch, vocab]
        if not bool(bad.any()):
            return  # the sum overflowed, the logits are all there
        ids, padding = pad_left(read, self._model.device)  # [batch, pos], [batch]
        mask = None
        if padding is not None:
            mask = (torch.arange(ids.shape[1], device=ids.device) >= padding[:, None]).long()  # [batch, pos]
        self._model.run(ids, attention_mask=mask, nonfinite="refuse")
        row, vocab = (int(i) for i in bad.nonzero()[0])
        raise NonFiniteError(
            "the logits are not finite, though each stage of the readable model is",
            where=f"logits[{row}, {vocab}]",
            got=float(logits[row, vocab]),
            fix="please report this with the checkpoint's config",
        )
