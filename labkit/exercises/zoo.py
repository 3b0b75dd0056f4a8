"""The zoo: ten engines with one fault each, as trace files. The files and their names tell nothing of the fault."""

import dataclasses
import random
from functools import cache
from pathlib import Path

from labkit.errors import OutOfRangeError

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
    """Write the trace of one engine on the embedded checkpoint into ``folder``; numbers are 1 to 10.

    >>> import tempfile
    >>> zoo_trace(1, tempfile.mkdtemp()).name
    'engine-01.safetensors'

    Raises OutOfRangeError for an engine that is not in the zoo.
    """
    from labkit.verification.trace import write_trace
    from labkit.verification.trace_record import record_trace

    if not 1 <= number <= ENGINES:
        raise OutOfRangeError("the zoo has no such engine", expected=f"1 to {ENGINES}", got=number)
    recorded = record_trace(engine="labkit", prompts=[PROMPT], plant=[plantings()[number - 1]])
    path = Path(folder) / f"engine-{number:02}.safetensors"
    write_trace(path, recorded.tensors, dataclasses.replace(recorded.metadata, engine=f"engine-{number:02}"))
    return path
