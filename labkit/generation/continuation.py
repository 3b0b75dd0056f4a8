"""Ids of several rows, one step at a time, until each row has stopped.

In: a model, prompts, settings. Out: at each ``advance`` a new id for every row that still runs. All state of a text
being made is here, in one object a call, so that a break at any point leaves the model as it was.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from torch import Tensor

from labkit.errors import ArgumentError, ArgumentTypeError, OutOfRangeError, UnknownNameError
from labkit.generation.choose import Chooser
from labkit.generation.decoder import Decoder, FastDecoder, WholeText
from labkit.generation.graph import GraphDecoder, rest, take
from labkit.generation.lookup import Lookup
from labkit.generation.reading import PassByPass, Reader, Source
from labkit.generation.settings import Settings
from labkit.model import GPT2
from labkit.outside import refuse_bytes, shown_value

Ids: TypeAlias = "Sequence[int] | Tensor | np.ndarray[tuple[int], np.dtype[np.integer]]"
"""One row of ids [pos]."""

Window = Literal["refuse", "slide"]
"""At the end of n_positions: refuse beforehand, or go on with the second half of the text, read again from position 0."""


class Continuation:
    """Rows of ids that grow by one id each at every ``advance``.

    >>> from labkit.load import load_gpt2
    >>> run = Continuation(load_gpt2(), [[5, 6], [7]], Settings(tokens=2))
    >>> len(run.advance()), len(run.advance()), run.advance()
    (2, 2, {})
    >>> [len(row) for row in run.rows]
    [4, 3]
    """

    def __init__(
        self,
        model: GPT2,
        prompts: Sequence[Sequence[int]],
        settings: Settings,
        *,
        cached: bool = True,
        window: Window = "refuse",
        lookup: bool = False,
    ) -> None:
        if window not in ("refuse", "slide"):
            raise UnknownNameError.near("window", window, ("refuse", "slide"))
        check_prompts(model, prompts)
        longest = max(map(len, prompts))
        if window == "refuse":
            check_room(model, longest, settings.tokens)
        self.rows = [list(prompt) for prompt in prompts]
        self.running = set(range(len(prompts)))
        self.new = 0
        self.notes: list[str] = []
        self._settings = settings
        self._chooser = Chooser(model, settings, batch=len(prompts))
        capacity = max(longest, longest + settings.tokens - 1)
        decoder = make_decoder(model, batch=len(prompts), capacity=capacity, cached=cached, lookup=lookup)
        self._model, self._decoder = model, decoder if isinstance(decoder, GraphDecoder) else None
        reader = Reader(model, decoder, self.notes.append, running=self.running)
        self.source: Source
        if lookup:
            self.source = Lookup(model, _for_lookup(decoder, prompts, settings), reader, self._chooser)
        else:
            self.source = PassByPass(reader, self._chooser)

    @property
    def seed(self) -> int | None:
        """The seed in use, None where nothing is drawn."""
        return self._chooser.seed

    def advance(self) -> dict[int, int]:
        """Row number -> its new id, for every row that runs; nothing when the text is over."""
        if not self.running or self.new >= self._settings.tokens:
            return {}
        ids = self.source.next_ids(self.rows, new=self.new)
        self.new += 1
        for number, token in enumerate(ids):
            self.rows[number].append(token)
        grown = {number: ids[number] for number in sorted(self.running)}
        if self.new >= self._settings.min_tokens:
            self.running -= {number for number, token in grown.items() if token in self._settings.stop_ids}
        self._rest_if_over()
        return grown

    def stop(self, number: int) -> None:
        """End a row for a reason that its ids do not show."""
        self.running.discard(number)
        self._rest_if_over()

    def _rest_if_over(self) -> None:
        over = not self.running or self.new >= self._settings.tokens
        if over and self._decoder is not None:
            rest(self._model, self._decoder)
            self._decoder = None


def make_decoder(model: GPT2, *, batch: int, capacity: int, cached: bool, lookup: bool) -> Decoder:
    """The lean pass (replayed as a graph on CUDA); the model itself where an operation of it is exchanged."""
    if not cached or not model.faithful:
        return WholeText(model)
    if model.device.type == "cuda" and not lookup:
        return take(model, batch=batch, capacity=capacity)
    return FastDecoder(model, batch=batch, capacity=capacity, drafts=lookup)


def _for_lookup(decoder: Decoder, prompts: Sequence[Sequence[int]], settings: Settings) -> FastDecoder:
    if len(prompts) > 1 or not settings.plain or not isinstance(decoder, FastDecoder):
        raise ArgumentError(
            "look-up decoding goes on with one prompt, greedily, with the cache",
            where="lookup",
            fix="leave out temperature, repetition_penalty, min_tokens, further prompts and cache=False, or lookup",
        )
    return decoder


def greedy(model: GPT2, ids: Ids, count: int) -> list[int]:
    """The ``count`` ids that follow ``ids``, each that of the largest logit; no setting of the checkpoint acts.

    A model with exchanged operations (planted faults) is run as it is, over the whole text at every step. Raises
    ``OutOfRangeError`` where the text would pass n_positions or an id is beyond the vocabulary, ``NonFiniteError``.

    >>> from labkit.load import load_gpt2
    >>> len(greedy(load_gpt2(), [5, 6, 7], 3))
    3
    """
    check_model(model)
    row = as_ids(ids, "ids")
    run = Continuation(model, [row], Settings(tokens=count))
    while run.advance():
        pass
    return run.rows[0][len(row) :]


def check_model(model: object) -> None:
    """Raise ``ArgumentTypeError`` unless ``model`` is a GPT2."""
    if not isinstance(model, GPT2):
        raise ArgumentTypeError(
            "not a model", where="model", expected="a GPT2, as load_gpt2 gives", got=shown_value(model)
        )


def as_ids(given: Ids, where: str, *, what: str = "not a row of ids") -> list[int]:
    """The ids of one row: a list, a tuple, or a tensor or array [pos] of whole numbers.

    >>> as_ids(np.array([5, 6]), "prompt"), as_ids((5, 6), "prompt")
    ([5, 6], [5, 6])
    >>> as_ids({5, 6}, "prompt")
    Traceback (most recent call last):
    labkit.errors.ArgumentTypeError: prompt: not a row of ids (expected whole numbers in order, got set)
    """
    refuse_bytes(given, where=where)
    values = given
    if isinstance(given, Tensor | np.ndarray):
        try:
            values = given.tolist()
        except (NotImplementedError, RuntimeError) as error:  # on the meta device, nested, sparse
            raise ArgumentTypeError(
                "its values cannot be read", where=where, expected="a dense tensor [pos]", got=str(error).split("\n")[0]
            ) from error
    if not isinstance(values, Sequence) or not all(
        isinstance(each, int | np.integer) and not isinstance(each, bool) for each in values
    ):
        raise ArgumentTypeError(what, where=where, expected="whole numbers in order", got=_kind(given))
    return [int(each) for each in values]


def _kind(given: object) -> str:
    if isinstance(given, Tensor | np.ndarray):
        return f"{given.dtype} of shape {list(given.shape)}"
    return type(given).__name__


def check_prompts(model: GPT2, prompts: Sequence[Sequence[int]]) -> None:
    """Raise unless there are prompts, each has an id, and every id is in the vocabulary."""
    if not prompts:
        raise ArgumentError("no prompt was given", where="prompts", expected="at least one")
    size = model.config.vocab_size
    for number, prompt in enumerate(prompts):
        where = f"prompt {number}" if len(prompts) > 1 else "prompt"
        if not prompt:
            fix = "give it a word, or the id of the end-of-text token, which starts a text as well"
            raise ArgumentError("the prompt has no tokens", where=where, expected="at least one", fix=fix)
        for place, token in enumerate(prompt):
            if not 0 <= token < size:
                raise OutOfRangeError(
                    "the id is beyond the vocabulary",
                    where=f"{where}, position {place}",
                    expected=f"0 to {size - 1}",
                    got=token,
                    fix="encode the text with this checkpoint's own tokenizer",
                )


def check_room(model: GPT2, longest: int, tokens: int) -> None:
    """Raise ``OutOfRangeError`` unless ``tokens`` more fit; the last of them is never read, so it needs no position."""
    limit = model.config.n_positions
    if longest > limit:
        raise OutOfRangeError(
            "the prompt is longer than the model's positions",
            where="prompt",
            expected=f"at most n_positions = {limit} tokens",
            got=longest,
            fix='shorten it, or pass window="slide" (--window slide) to read its end only',
        )
    if longest + tokens - 1 > limit:
        raise OutOfRangeError(
            f"a prompt of {longest} tokens leaves no room for {tokens} more",
            where="tokens",
            expected=f"at most {limit - longest + 1}, n_positions being {limit}",
            got=tokens,
            fix='ask for fewer, or pass window="slide" (--window slide) to go on with the end of the text',
        )
