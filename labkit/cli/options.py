"""Errors told in the words of the command line: the library's, and mistakes in calling a command."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperOption

from labkit.errors import ArgumentError, LabkitError, UnknownNameError
from labkit.outside import shown

if TYPE_CHECKING:
    import torch

LONGEST = 200
"""Characters of the parser's own words that are shown: it repeats every argument, as a pattern of many files gives them."""

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

SPELLINGS: Mapping[str, str] = {
    short: name
    for name, others in {
        "float32": ("f32", "fp32"),
        "bfloat16": ("bf16",),
        "float16": ("f16", "fp16"),
        "float64": ("f64", "fp64"),
    }.items()
    for short in (name, *others)
}
"""What ``--dtype`` may say, in every command -> torch's name."""

PHRASES: Mapping[str, str] = {
    "pass tokenizer=, or give the prompt as ids": "give --ids in place of the text",
    "encode the text with this checkpoint's own tokenizer": (
        "ids of a checkpoint come from its own vocabulary: `labkit encode -t FOLDER`, FOLDER being the checkpoint's"
    ),
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


class GivenOnce(TyperCommand):
    """A command whose options that hold one value are refused where they are given twice: one would be dropped."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Raise ``ArgumentError`` for such an option, then read the command line as usual."""
        seen = set()
        for param in self.make_parser(ctx).parse_args(args=list(args))[2]:
            drops = (
                isinstance(param, TyperOption) and not param.multiple and (param.secondary_opts or not param.is_flag)
            )
            if param in seen and drops:
                names = "/".join((*param.opts, *param.secondary_opts))
                raise ArgumentError("given more than once, and it holds one value", where=names, fix="give it once")
            seen.add(param)
        return super().parse_args(ctx, args)


def spelled(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, with its ``--dtype`` in torch's own name; raises ``UnknownNameError`` for another."""

    @wraps(command)
    def named(**values: Any) -> Any:
        given = values.get("dtype")
        if given is not None:
            values["dtype"] = dtype_name(given) if isinstance(given, str) else [dtype_name(each) for each in given]
        return command(**values)

    return named


def dtype_name(given: str) -> str:
    """Torch's name of a dtype, from any of its spellings.

    >>> dtype_name("bf16"), dtype_name("F32"), dtype_name("torch.float64")
    ('bfloat16', 'float32', 'float64')
    """
    name = SPELLINGS.get(given.lower().removeprefix("torch."))
    if name is None:
        raise UnknownNameError.near("dtype", given, SPELLINGS, where="--dtype")
    return name


def dtype_of(name: str) -> "torch.dtype":
    """The dtype of a name that ``dtype_name`` gave."""
    import torch

    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


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


def told_usage(error: Any) -> str:
    """The line of a mistake in calling a command, from the parser's exception; empty where the help was shown instead."""
    message = str(error.format_message())
    if not message:
        return ""
    why = getattr(error.__cause__ or error.__context__, "errors", None)  # typer reads values with pydantic
    if why is not None:
        message = _told_value("/".join(error.param.opts), why()[0])
    elif len(message) > LONGEST:
        message = f"{message[:LONGEST]} ... ({len(message):,} characters)"
    path = error.ctx.command_path if error.ctx is not None else "labkit"
    return f"{message.rstrip('.')}; `{path} --help` says what it takes"


def _told_value(where: str, why: Mapping[str, Any]) -> str:
    limits = why.get("ctx", {})
    expected = f"{limits['ge']} or more" if "ge" in limits else f"at most {limits['le']}" if "le" in limits else None
    kinds = {"int_parsing": "not a whole number", "float_parsing": "not a number"}
    what = "out of range" if expected else kinds.get(why["type"], why["msg"].removeprefix("Value error, ").rstrip("."))
    got = None if what.startswith(repr(why["input"])) else shown(why["input"])
    return str(ArgumentError(what, where=where, expected=expected, got=got))
