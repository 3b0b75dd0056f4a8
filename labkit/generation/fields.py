"""The fields of generation_config.json: what each may hold, and which would change the text and are not followed.

In: the file's JSON object. Out: an error naming the first field of a wrong type, or the fields to tell of. Mirrors what
``transformers`` 5.24 does with each field in ``generate`` for a model without an encoder.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from labkit.errors import ConfigError
from labkit.outside import shown_value

Fields = Mapping[str, Any]


def _is_whole(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _one_or_several(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: fits(value) or (isinstance(value, list) and all(map(fits, value)))


KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "do_sample": ("true or false", lambda value: isinstance(value, bool)),
    "temperature": ("a number", _is_number),
    "top_k": ("a whole number, 0 for no cut", _is_whole),
    "top_p": ("a number", _is_number),
    "min_p": ("a number", _is_number),
    "repetition_penalty": ("a number", _is_number),
    "max_new_tokens": ("a whole number, 1 or more", lambda value: _is_whole(value, 1)),
    "min_new_tokens": ("a whole number, 0 or more", _is_whole),
    "max_length": ("a whole number, 0 or more", _is_whole),
    "eos_token_id": ("an id or a list of ids", _one_or_several(_is_whole)),
    "stop_strings": ("a text or a list of texts, none of them empty", _one_or_several(_is_text)),
}
"""What a field that is followed may hold; null, as transformers writes it, is as if the field were not there."""


def check_fields(fields: Fields, path: Path) -> None:
    """Raise ``ConfigError`` at the first field that is followed and holds what it may not."""
    for name, (expected, fits) in KINDS.items():
        value = fields.get(name)
        if value is not None and not fits(value):
            raise ConfigError(
                f"{name} is of the wrong kind",
                where=path,
                expected=expected,
                got=shown_value(value),
                fix="correct the file, or remove the field",
            )


Changes = Callable[[Any, Fields], bool]
"""Whether a field's value, beside the others, would change the text."""


def _unless(*idle: Any) -> Changes:
    return lambda value, _: value not in idle


def _sampling(changes: Callable[[Any], bool]) -> Changes:
    return lambda value, fields: fields.get("do_sample") is True and changes(value)


def _inside(value: Any) -> bool:
    return not _is_number(value) or 0 < value < 1


def _beams(value: Any, fields: Fields) -> bool:
    return bool(value) and fields.get("num_beams") not in (None, 1)


def _contrasts(value: Any, fields: Fields) -> bool:
    top_k = fields.get("top_k")
    return bool(value) and not fields.get("do_sample") and top_k is not None and top_k > 1


NOT_FOLLOWED: Mapping[str, Changes] = {
    "num_beams": _unless(1),
    "num_beam_groups": lambda value, fields: value != 1 and _beams(value, fields),
    "diversity_penalty": _beams,
    "num_return_sequences": _unless(1),
    "constraints": _unless([]),
    "force_words_ids": _unless([]),
    "penalty_alpha": _contrasts,
    "dola_layers": _unless(),
    "top_h": _sampling(lambda _: True),
    "typical_p": _sampling(lambda value: value != 1.0),
    "epsilon_cutoff": _sampling(_inside),
    "eta_cutoff": _sampling(_inside),
    "no_repeat_ngram_size": _unless(0),
    "encoder_repetition_penalty": _unless(1.0),
    "encoder_no_repeat_ngram_size": _unless(0),
    "bad_words_ids": _unless([]),
    "sequence_bias": _unless([], {}),
    "suppress_tokens": _unless([]),
    "begin_suppress_tokens": _unless([]),
    "forced_bos_token_id": _unless(),
    "forced_eos_token_id": _unless([]),
    "exponential_decay_length_penalty": _unless(),
    "guidance_scale": _unless(1),
    "watermarking_config": _unless(),
    "token_healing": _unless(False),  # noqa: FBT003
    "min_length": _unless(0),
    "max_time": _unless(),
    "assistant_confidence_threshold": lambda value, fields: fields.get("is_assistant") is True and value != 0,
    "cache_implementation": lambda value, _: value == "quantized",
}
"""Fields that are told where they would change the text, because they are not followed."""


def not_followed(fields: Fields) -> list[str]:
    """The names of the fields that would change the text and are not followed.

    >>> not_followed({"num_beams": 4, "typical_p": 0.9, "bad_words_ids": [], "max_time": 2.0})
    ['num_beams', 'max_time']
    """
    return [
        name for name, changes in NOT_FOLLOWED.items() if fields.get(name) is not None and changes(fields[name], fields)
    ]
