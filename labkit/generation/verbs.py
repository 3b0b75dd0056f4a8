"""Prompts -> text: the public verbs ``generate``, ``stream`` and ``generate_batch``.

In: a model and prompts, as text or ids. Out: ``Generation`` records, or ``Token`` records as they come.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeAlias, TypedDict, Unpack

from labkit.errors import ArgumentError, ArgumentTypeError, MissingFileError, UnknownNameError
from labkit.generation.continuation import Continuation, Ids, Window, as_ids, check_model
from labkit.generation.lookup import Lookup
from labkit.generation.settings import MAX_SEED, Settings, Sourced, as_tuple, option_names, resolve, without_stop
from labkit.generation.text import TextFeed, note_unknown, text_of
from labkit.model import GPT2
from labkit.outside import refuse_bytes, shown_value
from labkit.tokenizer import Tokenizer

GPT2_VOCABULARY = 50257
"""Rows of wte in every GPT-2 that OpenAI released."""

FRESH = "fresh"
"""The origin of a seed that nobody gave."""

Prompt: TypeAlias = "str | Ids"
"""A text, or its ids [pos]."""


class Options(TypedDict, total=False):
    """What may be asked for; an option left out (or None) is what generation_config.json says, else plain greedy."""

    tokens: int | None  # at most this many new ones; 20
    min_tokens: int | None  # stop ids and stop strings act from here on
    temperature: float | None  # 0: the largest logit; above: a draw
    top_k: int | None  # draw from the k likeliest
    top_p: float | None  # draw from the likeliest that reach p together
    min_p: float | None  # draw from those at least p times as likely as the likeliest
    repetition_penalty: float | None  # above 1: ids already there become less likely
    stop_ids: int | Sequence[int] | None  # end the text, and stay among its ids; in place of the checkpoint's
    stop: str | Sequence[str] | None  # end the text, and are cut from it; in place of the checkpoint's
    seed: int | None  # the same text again on the same device; a fresh one is taken and told otherwise
    cache: bool | None  # False: the readable model over the whole text for every token
    window: Window | None  # "slide": past n_positions by reading the second half of the text again
    lookup: bool | None  # True: several greedy ids a pass where the text repeats itself, the same ids in the end
    tokenizer: Tokenizer | None  # default: the one beside the checkpoint


@dataclass(frozen=True, kw_only=True)
class Token:
    """One new token: its id, and the text that became certain with it (whole characters, perhaps none)."""

    id: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A finished continuation. ``str()`` gives prompt and text."""

    prompt: str | None  # None where there is no tokenizer
    prompt_ids: tuple[int, ...]
    text: str | None
    ids: tuple[int, ...]  # the new ones, a stop id included
    stopped_by: str  # "tokens", "stop id 0", "stop string '\\n'"
    settings: Settings
    origins: dict[str, str]  # where each setting came from: "given", "generation_config.json", "default" ...
    seed: int | None  # this row's own, with which it repeats alone; settings has it too; None for greedy
    seconds: float  # of all rows that ran together, the prompt's pass included
    tokens_per_second: float  # new tokens of all rows that ran together, by ``seconds``
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.prompt}{self.text}" if self.text is not None else " ".join(map(str, self.ids))


class Stream:
    """Tokens as they come: an iterator; stop whenever you like, ``result()`` holds what has come.

    >>> from labkit.load import load_gpt2
    >>> tokens = stream(load_gpt2(), "The", tokens=3)
    >>> first = next(tokens)
    >>> first.text + "".join(token.text for token in tokens) == tokens.result().text
    True

    A stream of several prompts gives ``steps()``, and is no iterator: ``ArgumentError`` says so.
    """

    def __init__(
        self,
        run: Continuation,
        prompt_ids: Sequence[Sequence[int]],
        sourced: Sourced,
        tokenizer: Tokenizer | None,
        notes: Sequence[str],
    ) -> None:
        self._run = run
        self._prompts = [tuple(ids) for ids in prompt_ids]
        self._sourced = sourced
        self._tokenizer = tokenizer
        self._notes = tuple(notes)
        stop = sourced.settings.stop
        self._feeds = [TextFeed(tokenizer, stop=stop) for _ in prompt_ids] if tokenizer is not None else []
        self._texts = ["" for _ in prompt_ids]
        self._unknown: str | None = None
        several = len(self._prompts) > 1
        for number, prompt in enumerate(self._prompts):
            for place, token in enumerate(prompt):
                self._watch(token, f"prompt {number}, position {place}" if several else f"prompt, position {place}")
        self._ids: list[list[int]] = [[] for _ in prompt_ids]
        self._reasons: list[str] = ["tokens" for _ in prompt_ids]
        self.seconds = 0.0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Token:
        """The next token of the only row."""
        if len(self._prompts) > 1:
            raise ArgumentError(
                "several prompts grow together", where="stream", got=len(self._prompts), fix="iterate over .steps()"
            )
        grown = next(self.steps(), None)
        if grown is None:
            raise StopIteration
        return grown[0]

    def steps(self) -> Iterator[dict[int, Token]]:
        """Row number -> its new token, for every row that still runs."""
        while True:
            began = time.perf_counter()
            grown = self._run.advance()
            if not grown:
                break
            tokens = {number: Token(id=token, text=self._take(number, token)) for number, token in grown.items()}
            self.seconds += time.perf_counter() - began
            yield tokens

    def result(self) -> Generation:
        """What has come so far of the only row, as a record."""
        return self.results()[0]

    def results(self) -> tuple[Generation, ...]:
        """What has come so far, a record a row."""
        return tuple(self._result(number) for number in range(len(self._prompts)))

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all rows by the time spent on them so far, the prompt's pass included."""
        return sum(map(len, self._ids)) / self.seconds if self.seconds else 0.0

    @property
    def sourced(self) -> Sourced:
        """The settings in use, and where each came from."""
        return self._sourced

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the text should know of how it was made."""
        unknown = () if self._unknown is None else (self._unknown,)
        drafts = (str(self._run.source),) if isinstance(self._run.source, Lookup) else ()
        return (*self._notes, *unknown, *self._run.notes, *drafts)

    def _take(self, number: int, token: int) -> str:
        self._ids[number].append(token)
        settings = self._sourced.settings
        new = len(self._ids[number])
        self._watch(token, f"new token {new - 1}" + (f" of prompt {number}" if len(self._prompts) > 1 else ""))
        ended = number not in self._run.running
        if ended:
            self._reasons[number] = f"stop id {token}"
        text = ""
        if self._feeds:
            feed = self._feeds[number]
            if not (ended and token in settings.stop_ids):
                text = feed.add(token, may_stop=new >= settings.min_tokens)
            if feed.found is not None:
                self._run.stop(number)
            if number not in self._run.running or new == settings.tokens:
                text += feed.close()  # which may complete a stop string that ends in U+FFFD
            if feed.found is not None:
                self._reasons[number] = f"stop string {feed.found!r}"
        self._texts[number] += text
        return text

    def _watch(self, token: int, where: str) -> None:
        """Keep a note of the first id that the tokenizer does not have."""
        if self._unknown is None and self._tokenizer is not None:
            self._unknown = note_unknown(self._tokenizer, token, where)

    def _result(self, number: int) -> Generation:
        tokenizer, prompt = self._tokenizer, self._prompts[number]
        seed = None if self._run.seed is None else self._run.seed + number
        settings, origins = self._sourced.settings, dict(self._sourced.origins)
        if seed is not None and number:
            settings, origins["seed"] = replace(settings, seed=seed), f"{origins['seed']}, plus {number} for the row"
        return Generation(
            prompt=text_of(tokenizer, prompt) if tokenizer is not None else None,
            prompt_ids=prompt,
            text=self._texts[number] if tokenizer is not None else None,
            ids=tuple(self._ids[number]),
            stopped_by=self._reasons[number],
            settings=settings,
            origins=dict.fromkeys(option_names(), "default") | origins,
            seed=seed,
            seconds=self.seconds,
            tokens_per_second=self.tokens_per_second,
            notes=self.notes,
        )


def generate(model: GPT2, prompt: Prompt, **options: Unpack[Options]) -> Generation:
    """The continuation of one prompt, text or ids, by up to ``tokens`` (20) new tokens; ``Options`` lists the rest.

    Raises ``OutOfRangeError`` where the text would pass n_positions, ``ArgumentError`` for an option out of range or an
    empty prompt, ``NonFiniteError`` naming the first stage with a NaN or an infinity, ``VocabularyError``.

    >>> from labkit.load import load_gpt2
    >>> result = generate(load_gpt2(), "The", tokens=5)
    >>> len(result.ids), result.stopped_by
    (5, 'tokens')
    """
    return generate_batch(model, [prompt], **options)[0]


def generate_batch(model: GPT2, prompts: Sequence[Prompt], **options: Unpack[Options]) -> tuple[Generation, ...]:
    """The continuation of each prompt, in shared passes; with ``seed``, row i draws as if alone with seed + i.

    >>> from labkit.load import load_gpt2
    >>> [len(each.ids) for each in generate_batch(load_gpt2(), ["The", "It is a truth"], tokens=4)]
    [4, 4]
    """
    run = stream_batch(model, prompts, **options)
    for _ in run.steps():
        pass
    return run.results()


def stream(model: GPT2, prompt: Prompt, **options: Unpack[Options]) -> Stream:
    """As ``generate``, token by token; a break at any point loses nothing and leaves the model as it was."""
    return stream_batch(model, [prompt], **options)


def stream_batch(model: GPT2, prompts: Sequence[Prompt], **options: Unpack[Options]) -> Stream:
    """As ``generate_batch``, step by step: iterate over ``.steps()``."""
    for name in options:
        if name not in Options.__annotations__:
            raise UnknownNameError.near("option", name, Options.__annotations__)
    check_model(model)
    refuse_bytes(prompts, where="prompts")
    if isinstance(prompts, str) or not isinstance(prompts, Sequence):
        raise ArgumentTypeError("not a list of prompts", where="prompts", got=shown_value(prompts))
    folder = checkpoint_folder(model)
    tokenizer = _tokenizer(options.get("tokenizer"))
    notes: list[str] = []
    if tokenizer is None:
        needed = bool(options.get("stop")) or any(isinstance(prompt, str) for prompt in prompts)
        tokenizer, notes = find_tokenizer(model, folder, needed=needed)
    ids = [_ids(prompt, tokenizer) for prompt in prompts]
    given = {name: options.get(name) for name in option_names()}
    given |= {name: as_tuple(given[name]) for name in ("stop", "stop_ids")}
    sourced = resolve(
        given,
        folder=folder,
        longest_prompt=max(map(len, ids), default=0),
        vocab_size=model.config.vocab_size,
    )
    if tokenizer is None and sourced.settings.stop:
        sourced = without_stop(sourced)
    run = Continuation(
        model,
        ids,
        sourced.settings,
        cached=_flag(options.get("cache"), "cache", default=True),
        window=options.get("window") or "refuse",
        lookup=_flag(options.get("lookup"), "lookup", default=False),
    )
    if run.seed is not None and run.seed + len(ids) - 1 > MAX_SEED:
        most = f"0 to {MAX_SEED - len(ids) + 1}, as row {len(ids) - 1} draws with {len(ids) - 1} more"
        raise ArgumentError("out of range", where="seed", expected=most, got=run.seed)
    if run.seed is not None and sourced.settings.seed is None:
        origins = {**sourced.origins, "seed": FRESH}
        sourced = replace(sourced, settings=replace(sourced.settings, seed=run.seed), origins=origins)
    return Stream(run, ids, sourced, tokenizer, [*sourced.notes, *notes])


def _tokenizer(given: object) -> Tokenizer | None:
    if not isinstance(given, Tokenizer | None):
        fix = "Tokenizer.from_folder(FOLDER) or Tokenizer.gpt2() makes one"
        raise ArgumentTypeError("not a tokenizer", where="tokenizer", got=shown_value(given), fix=fix)
    return given


def _flag(given: object, where: str, *, default: bool) -> bool:
    if given is None:
        return default
    if not isinstance(given, bool):
        raise ArgumentTypeError("not a flag", where=where, expected="True or False", got=shown_value(given))
    return given


def checkpoint_folder(model: GPT2) -> Path | None:
    """The folder that the model was loaded from, if it was."""
    folder = getattr(model.load_report, "folder", None)
    return None if folder is None else Path(folder)


def find_tokenizer(model: GPT2, folder: Path | None, *, needed: bool) -> tuple[Tokenizer | None, list[str]]:
    """The tokenizer beside the checkpoint; GPT-2's own, with a note, where none is there and the sizes agree."""
    if folder is not None and any(os.path.lexists(folder / name) for name in ("tokenizer.json", "vocab.json")):
        return Tokenizer.from_folder(folder), []
    if model.config.vocab_size == GPT2_VOCABULARY:
        try:
            return Tokenizer.gpt2(), ["there is no tokenizer beside the checkpoint: GPT-2's own vocabulary is used"]
        except MissingFileError:
            if needed:
                raise
    if needed:
        raise ArgumentError(
            "a text needs a tokenizer, and none is beside the checkpoint",
            where=folder or "model",
            fix="pass tokenizer=, or give the prompt as ids",
        )
    return None, []


def _ids(prompt: Prompt, tokenizer: Tokenizer | None) -> list[int]:
    if isinstance(prompt, str):
        assert tokenizer is not None
        return tokenizer.encode(prompt)
    return as_ids(prompt, "prompt", what="a prompt is a text or a row of ids")
