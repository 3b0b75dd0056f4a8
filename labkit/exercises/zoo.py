"""The zoo: ten engines with one fault each, as trace files. The files and their names tell nothing of the fault."""

import dataclasses
import operator
import os
import random
from functools import cache
from pathlib import Path

from labkit.errors import ArgumentTypeError, FileAccessError, OutOfRangeError

PROMPT = "It is a truth universally acknowledged, that a single man in possession of a good fortune"
_FAULTS = (
    "erf-gelu",
    "heads-interleaved",
    "mask-one-ahead",
    "merge-without-transpose",
    "no-bias-mlp.c_fc",
    "previous-block-mlp.c_proj",
    "qkv-order-qvk",
    "residual-after-norm",
    "scale-n_embd",
    "transpose-c_proj",
)
ENGINES = len(_FAULTS)
_BLOCKS = 4
_SEED = 1813


@cache
def plantings() -> tuple[str, ...]:
    """What is planted in each engine, as ``NAME:BLOCK``. Reading this spoils the zoo."""
    chance = random.Random(_SEED)
    return tuple(f"{name}:{chance.randrange(1, _BLOCKS)}" for name in chance.sample(_FAULTS, ENGINES))


def zoo_trace(number: int, folder: str | Path) -> Path:
    """Write the trace of one engine on the embedded checkpoint into ``folder``, made where it is not there; numbers
    are 1 to 10.

    >>> import tempfile
    >>> zoo_trace(1, tempfile.mkdtemp()).name
    'engine-01.safetensors'

    Raises OutOfRangeError for an engine that is not in the zoo, ArgumentTypeError for a number that is no whole number
    or a folder that is no path, FileAccessError where the folder cannot be made.
    """
    from labkit.verification.trace import write_trace
    from labkit.verification.trace_record import record_trace

    engine, place = _engine_number(number), _made(folder)
    recorded = record_trace(engine="labkit", prompts=[PROMPT], plant=[plantings()[engine - 1]])
    path = place / f"engine-{engine:02}.safetensors"
    write_trace(path, recorded.tensors, dataclasses.replace(recorded.metadata, engine=f"engine-{engine:02}"))
    return path


def _engine_number(number: object) -> int:
    expected = f"a whole number from 1 to {ENGINES}"
    try:
        engine = operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentTypeError("an engine is named by its number", expected=expected, got=repr(number)) from None
    if not 1 <= engine <= ENGINES:
        raise OutOfRangeError("the zoo has no such engine", expected=expected, got=engine)
    return engine


def _made(folder: object) -> Path:
    if not isinstance(folder, str | os.PathLike):
        raise ArgumentTypeError("the traces need a folder", expected="a path", got=repr(folder))
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileAccessError(f"the folder cannot be made ({error.strerror})", where=path) from None
    return path
