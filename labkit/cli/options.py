"""Errors of the library, told in the words of the command line: its options in place of Python's arguments."""

from collections.abc import Mapping

from labkit.errors import LabkitError

OPTIONS: Mapping[str, str] = {
    "stop_ids": "--stop-id",
    **{
        name: f"--{name.replace('_', '-')}"
        for name in (
            *("tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "stop", "seed"),
            *("lookup", "threads", "device", "dtype", "text", "atol"),
        )
    },
}
"""Arguments that an error may stand at -> the options that fill them."""

PHRASES: Mapping[str, str] = {
    "pass tokenizer=, or give the prompt as ids": "give --ids in place of the text",
    'pass window="slide" (--window slide)': "add --window slide",
    "leave out temperature, repetition_penalty, min_tokens, further prompts and cache=False, or lookup": (
        "leave out --temperature, --repetition-penalty, --min-tokens, further prompts and --no-cache, or --lookup"
    ),
    'take it as text with special_tokens="plain"': "take it as text with --special-tokens plain",
    "allow it by name": "allow it by name with --allow",
    'decode with errors="replace", or take the bytes': "leave --errors out, or take the bytes with --json",
    'encode with surrogates="replace" to take U+FFFD instead, as tiktoken does': "give a text that is UTF-8",
    ", or pass prefer='index' or 'single'": "",
    "untie=True loads the stored head": "`labkit convert --untie` loads the stored head",
}
"""What to do next, in Python's words -> the same on the command line."""


def told(error: LabkitError) -> str:
    """The line of an error that nobody will catch any more, with the options that a user can change.

    >>> from labkit.errors import ArgumentError
    >>> told(ArgumentError("out of range", where="min_tokens", got=-1))
    '--min-tokens: out of range (got -1)'
    """
    if isinstance(error.where, str):
        error.where = OPTIONS.get(error.where, error.where)
    for phrase, options in PHRASES.items():
        error.fix = error.fix and error.fix.replace(phrase, options)
    return str(error)
