"""How a continuation is chosen: the user's options over the checkpoint's generation_config.json over plain greedy.

In: options, and a folder's generation_config.json. Out: one frozen ``Settings``, checked once, and where each value
came from. Field names follow transformers' GenerationConfig where both have the same thing.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from labkit.checkpoint.config_file import read_config_fields
from labkit.errors import ArgumentError, ArgumentTypeError, ConfigError
from labkit.generation.fields import check_fields, not_followed
from labkit.outside import path_of, refuse_bytes, require_whole, shown_number, shown_value
from labkit.words import counted

DEFAULT_TOKENS = 20
"""New tokens where nobody says how many."""

MAX_SEED = 2**63 - 1
"""Row i of a batch draws with the seed plus i, and torch takes seeds of 64 bits."""

DRAWING = ("top_k", "top_p", "min_p", "seed")
"""Options that act only where tokens are drawn."""

FILE_NAME = "generation_config.json"

TRANSFORMERS_TOP_K = 50
"""What transformers cuts to where generation_config.json samples and states no top_k."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What decides the next token and when to stop.

    >>> Settings(temperature=0.8, top_k=40).sampled, Settings().sampled
    (True, False)
    >>> Settings(top_p=1.5)
    Traceback (most recent call last):
    labkit.errors.ArgumentError: top_p: out of range (expected above 0, at most 1, got 1.5)

    ``temperature`` 0 is greedy. ``stop_ids`` end the text and are kept among its ids; ``stop`` strings end it and are
    cut from its text. Both are left alone until ``min_tokens`` tokens have come.
    """

    tokens: int = DEFAULT_TOKENS
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    stop_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        _whole(self.tokens, "tokens", least=0)
        _whole(self.min_tokens, "min_tokens", least=0)
        _number(self.temperature, "temperature", "0 or more", lambda x: x >= 0)
        if self.top_k is not None:
            _whole(self.top_k, "top_k", least=1)
        if self.top_p is not None:
            _number(self.top_p, "top_p", "above 0, at most 1", lambda x: 0 < x <= 1)
        if self.min_p is not None:
            _number(self.min_p, "min_p", "0 to 1", lambda x: 0 <= x <= 1)
        _number(self.repetition_penalty, "repetition_penalty", "1e-6 to 1e6", lambda x: 1e-6 <= x <= 1e6)
        _several(self.stop_ids, "stop_ids", "ids")
        _several(self.stop, "stop", "texts")
        for each in self.stop_ids:
            _whole(each, "stop_ids", least=0)
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise ArgumentError(
                    "not a text to stop at", where="stop", expected="a text of a character or more", got=repr(text)
                )
        if self.seed is not None:
            _whole(self.seed, "seed", least=0, most=MAX_SEED)

    @property
    def sampled(self) -> bool:
        """Whether tokens are drawn; otherwise each is the one of the largest logit."""
        return self.temperature > 0

    @property
    def plain(self) -> bool:
        """Whether the next id is the largest logit's, with nothing done to the logits."""
        return not self.sampled and self.repetition_penalty == 1.0 and not (self.min_tokens and self.stop_ids)


@dataclass(frozen=True, kw_only=True)
class Sourced:
    """Settings with the origin of every value that is not the plain default.

    >>> print(Sourced(settings=Settings(tokens=5, stop_ids=(0, 7)), origins={"tokens": "given", "stop_ids": "given"}))
    tokens 5 (given), stop_ids 0 and 7 (given)
    """

    settings: Settings
    origins: Mapping[str, str]
    max_length: int | None = None  # tokens of prompt and text together, where the checkpoint limits that
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = [f"{name} {_plain(getattr(self.settings, name))} ({origin})" for name, origin in self.origins.items()]
        return ", ".join(said) or "greedy"


def _plain(value: Any) -> str:
    return " and ".join(map(repr, value)) if isinstance(value, tuple) else repr(value)


def resolve(
    given: Mapping[str, Any], *, folder: Path | None, longest_prompt: int = 0, vocab_size: int | None = None
) -> Sourced:
    """The options in ``given`` (None: not given) over those of ``folder``'s generation_config.json.

    Stop ids of the file beyond ``vocab_size`` are left out with a note, and so is every option given without effect.

    >>> sourced = resolve({"tokens": 5, "top_k": None}, folder=None)
    >>> sourced.settings.tokens, str(sourced)
    (5, 'tokens 5 (given)')
    """
    none = Sourced(settings=Settings(), origins={})
    stored = none if folder is None else checkpoint_settings(folder, vocab_size=vocab_size)
    stated = {name: value for name, value in given.items() if value is not None}
    origins = {**stored.origins, **dict.fromkeys(stated, "given")}
    if "tokens" not in origins and stored.max_length is not None:
        stated["tokens"] = max(0, stored.max_length - longest_prompt)
        origins["tokens"] = f"max_length {stored.max_length} in {FILE_NAME}"
    settings = replace(stored.settings, **stated)
    notes = (*stored.notes, *_without_effect(settings, stated), *_replaced(stored.settings, stated))
    return replace(stored, settings=settings, origins=origins, notes=notes)


def _without_effect(settings: Settings, given: Mapping[str, Any]) -> Iterator[str]:
    """What to say of options in ``given`` that change nothing beside the others."""
    drawing = [f"{name} {given[name]!r}" for name in DRAWING if name in given]
    one_left = "top_k 1" if settings.top_k == 1 else "min_p 1" if settings.min_p == 1 else None
    if drawing and not settings.sampled:
        yield f"without effect: {', '.join(drawing)}, because tokens are drawn only at a temperature above 0"
    elif one_left is not None and settings.sampled and given.keys() & {"temperature", *DRAWING}:
        yield f"{one_left} leaves only the likeliest id to draw, so that nothing is drawn by chance"
    if "min_tokens" in given and settings.min_tokens and not (settings.stop_ids or settings.stop):
        yield f"without effect: min_tokens {settings.min_tokens}, because no stop is set that it could hold back"
    elif ("min_tokens" in given or "tokens" in given) and settings.min_tokens > settings.tokens:
        told = f"min_tokens {settings.min_tokens} is more than tokens {settings.tokens}"
        yield f"{told}: the text ends after {counted(settings.tokens, 'token')}, and no stop acts before"


def _replaced(stored: Settings, given: Mapping[str, Any]) -> Iterator[str]:
    """What to say where stops that are given take the place of the checkpoint's own."""
    for name in ("stop_ids", "stop"):
        lost = [each for each in getattr(stored, name) if each not in given[name]] if name in given else []
        if lost:
            yield f"the checkpoint's own {name} {_plain(tuple(lost))} end nothing now: give them too to keep them"


def checkpoint_settings(folder: str | Path, *, vocab_size: int | None = None) -> Sourced:
    """The defaults that a folder's generation_config.json states; plain greedy where there is none.

    Temperature, top_k, top_p and min_p act only where ``do_sample`` is true, as in transformers. An ``eos_token_id``
    beyond ``vocab_size``, as transformers saves it with a small model (GPT-2's own 50256), is left out with a note:
    no text can end there. Raises ``ConfigError`` naming the field that has no sense.
    """
    path = path_of(folder, "folder") / FILE_NAME
    if not os.path.lexists(path):  # a link that leads nowhere is there, and is told when it is read
        return Sourced(settings=Settings(), origins={})
    fields = read_config_fields(path)
    check_fields(fields, path)
    stated = _from_fields(fields)
    origins = dict.fromkeys(stated, path.name)
    if fields.get("do_sample") and fields.get("top_k") is None:
        stated["top_k"], origins["top_k"] = TRANSFORMERS_TOP_K, "transformers' default where do_sample is true"
    try:
        settings = Settings(**stated)
    except (ArgumentError, ArgumentTypeError) as error:
        raise ConfigError(str(error), where=path, fix="correct the file, or remove the field") from error
    settings, beyond = _within(settings, vocab_size)
    if not settings.stop_ids:
        origins.pop("stop_ids", None)
    notes = [
        f"{path.name} states {name} {shown_value(fields[name])}, which labkit does not follow"
        for name in not_followed(fields)
    ]
    notes += [
        f"{path.name} states eos_token_id {each}, which is beyond the vocabulary of {vocab_size} ids: left out"
        for each in beyond
    ]
    return Sourced(settings=settings, origins=origins, max_length=fields.get("max_length"), notes=tuple(notes))


def without_stop(sourced: Sourced) -> Sourced:
    """The same without the file's stop strings, which nothing can be compared with where there is no tokenizer."""
    told = f"{FILE_NAME} states stop_strings {_plain(sourced.settings.stop)}: left out, as there is no tokenizer"
    origins = {name: origin for name, origin in sourced.origins.items() if name != "stop"}
    settings = replace(sourced.settings, stop=())
    return replace(sourced, settings=settings, origins=origins, notes=(*sourced.notes, told))


def _within(settings: Settings, vocab_size: int | None) -> tuple[Settings, tuple[int, ...]]:
    """The settings without the stop ids that a vocabulary of this size does not have, and those ids."""
    beyond = () if vocab_size is None else tuple(each for each in settings.stop_ids if each >= vocab_size)
    return replace(settings, stop_ids=tuple(each for each in settings.stop_ids if each not in beyond)), beyond


def _from_fields(stored: Mapping[str, Any]) -> dict[str, Any]:
    stated: dict[str, Any] = {}
    if stored.get("do_sample"):
        stated["temperature"] = 1.0
        names = ("temperature", "top_k", "top_p", "min_p")
        stated |= {name: stored[name] for name in names if stored.get(name) is not None}
        if stated.get("top_k") == 0:  # transformers' way to say: none
            del stated["top_k"]
    if stored.get("repetition_penalty") not in (None, 1.0):
        stated["repetition_penalty"] = stored["repetition_penalty"]
    for theirs, ours in (("max_new_tokens", "tokens"), ("min_new_tokens", "min_tokens")):
        if stored.get(theirs):
            stated[ours] = stored[theirs]
    stop = stored.get("eos_token_id")
    if stop is not None:
        stated["stop_ids"] = as_tuple(stop)
    if stored.get("stop_strings"):
        stated["stop"] = as_tuple(stored["stop_strings"])
    return stated


def option_names() -> tuple[str, ...]:
    """The names of every option, in order."""
    return tuple(field.name for field in fields(Settings))


def _whole(value: Any, where: str, *, least: int, most: int | None = None) -> None:
    if require_whole(value, where) < least or (most is not None and value > most):
        expected = f"{least} or more" if most is None else f"{least} to {most}"
        raise ArgumentError("out of range", where=where, expected=expected, got=shown_number(value))


def _several(values: Any, where: str, kind: str) -> None:
    refuse_bytes(values, where=where)
    if not isinstance(values, tuple | list):
        raise ArgumentTypeError(
            "not several values", where=where, expected=f"a tuple of {kind}", got=shown_value(values)
        )


def _number(value: Any, where: str, expected: str, fits: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentTypeError("not a number", where=where, expected=expected, got=repr(value))
    if abs(value) > sys.float_info.max or not fits(value):  # a NaN fits nowhere; a whole number may be of any length
        raise ArgumentError("out of range", where=where, expected=expected, got=shown_number(value))


def as_tuple(values: Any) -> tuple[Any, ...] | None:
    """One value or several as a tuple; None stays None.

    >>> as_tuple("a"), as_tuple([1, 2]), as_tuple(None)
    (('a',), (1, 2), None)
    """
    if values is None:
        return None
    if isinstance(values, str | bytes | bytearray | memoryview) or not isinstance(values, Sequence):
        return (values,)
    return tuple(values)
