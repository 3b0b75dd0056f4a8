"""A trace's tensors -> the sizes of the model they come from, whatever the trace's config says.

A config of another model makes every tap look wrong or missing; where all taps that show a size agree on it, the one
line to say is that the config has another.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from labkit.config import GPT2Config
from labkit.errors import ConfigError
from labkit.verification.trace import Trace
from labkit.verification.trace_names import IDS, split_block, split_step, step_prefix

SIZES = ("vocab_size", "n_embd", "n_layer", "n_head", "n_inner")
"""Config fields that a trace must share with the checkpoint to be held against it at all."""

_WIDTHS = {
    "n_embd": ("wte", "wpe", "embed", "ln_1", "attn.out", "resid_mid", "ln_2", "mlp.out", "resid_post", "ln_f"),
    "n_inner": ("mlp.pre", "mlp.post"),
    "vocab_size": ("logits",),
}
"""Field -> the stages whose last axis has its size."""
_HEADS = ("attn.q", "attn.k", "attn.v", "attn.z")
_SQUARES = ("attn.scores", "attn.pattern")


@dataclass(frozen=True)
class Size:
    """A size that the tensors show, and the tensor that shows it."""

    value: int
    tensor: str
    shape: tuple[int, ...]

    def describe(self) -> str:
        """Where it was read, in words."""
        return f"{self.tensor} is {list(self.shape)}"


def recorded_sizes(trace: Trace) -> dict[str, Size]:
    """The sizes on which every tap that shows them agrees; the number of blocks where more are recorded than stated.

    Fewer blocks than stated make a partial trace, which is none of another model.
    """
    shown: dict[str, list[Size]] = {}
    for field, size in _shown(trace):
        shown.setdefault(field, []).append(size)
    agreed = {field: sizes[0] for field, sizes in shown.items() if len({size.value for size in sizes}) == 1}
    blocks = _blocks(trace)
    return agreed if blocks is None else {**agreed, "n_layer": blocks}


def _blocks(trace: Trace) -> Size | None:
    """How many blocks are recorded, where they are more than stated and those beyond are as full as the last stated."""
    stages: dict[int, set[str]] = {}
    for name in trace:
        block, stage = split_block(split_step(name)[1])
        if block:
            stages.setdefault(int(block.split(".")[1]), set()).add(stage)
    stated = trace.config.n_layer
    beyond = sorted(block for block in stages if block >= stated)
    full = all(stages[block] == stages.get(stated - 1) for block in beyond)
    if not beyond or not full or beyond[-1] != stated + len(beyond) - 1:
        return None
    last = next(name for name in trace if split_block(split_step(name)[1])[0] == f"h.{beyond[-1]}.")
    return Size(beyond[-1] + 1, last, trace.entry(last).shape)


def _shown(trace: Trace) -> Iterator[tuple[str, Size]]:
    """Field and size for every tap in its usual order of axes: another order is no other size."""
    width = trace.config.n_embd
    for name in trace:
        step, tap = split_step(name)
        stage, shape, ids = split_block(tap)[1], trace.entry(name).shape, step_prefix(step) + IDS
        pos = trace.entry(ids).shape[-1:] if ids in trace else ()
        field = next((each for each, stages in _WIDTHS.items() if stage in stages), None)
        if field is not None and len(shape) in (2, 3) and shape[-2:-1] == pos:
            width = shape[-1] if field == "n_embd" else width
            yield field, Size(shape[-1], name, shape)
        split = stage in _HEADS and shape[2:3] == pos and len(shape) == 4 and shape[1] * shape[3] == width
        square = stage in _SQUARES and shape[2:] == (*pos, *pos) and len(shape) == 4 and step is None
        if split or square:
            yield "n_head", Size(shape[1], name, shape)


def stated_size(config: GPT2Config, field: str) -> int:
    """A size as a config has it; n_inner spelled out."""
    return config.inner if field == "n_inner" else int(getattr(config, field))


def size_lines(trace: Trace, checkpoint: GPT2Config | None = None) -> dict[str, str]:
    """Field -> what to say of a size that the config, the tensors and the checkpoint do not share.

    Without ``checkpoint`` the first two are compared.
    """
    recorded, lines = recorded_sizes(trace), {}
    for field in SIZES:
        stated, shown = stated_size(trace.config, field), recorded.get(field)
        true = stated if checkpoint is None else stated_size(checkpoint, field)
        if stated == true and shown is not None and shown.value != stated:
            too = "" if checkpoint is None else " and in the checkpoint"
            lines[field] = f"{field} is {stated} in the trace's config{too}, but {_told(field, shown)}"
        elif stated != true:
            more = "" if shown is None or shown.value == stated else f"; {_told(field, shown)}"
            lines[field] = f"{field} is {stated} in the trace's config and {true} in the checkpoint{more}"
    return lines


def size_fix(trace: Trace, lines: Mapping[str, str], checkpoint: GPT2Config | None = None) -> str:
    """What to do about ``size_lines``: mend the config where the tensors are the checkpoint's, else ask for the other one."""
    recorded, own = recorded_sizes(trace), "write the checkpoint's own config.json"
    if checkpoint is not None and any(size.value != stated_size(checkpoint, field) for field, size in recorded.items()):
        return "give its own checkpoint, or look at where your engine takes its sizes"
    return own if all(field in recorded for field in lines) else f"{own}, or give the trace's own checkpoint"


def _told(field: str, shown: Size) -> str:
    if field == "n_layer":
        return f"blocks up to {shown.value - 1} are recorded ({shown.tensor})"
    return f"the tensors have {shown.value} ({shown.describe()})"


def as_recorded(config: GPT2Config, recorded: Mapping[str, Size]) -> GPT2Config:
    """The config with the sizes that the tensors show; as it is where no model has them."""
    sizes: dict[str, Any] = {field: size.value for field, size in recorded.items()}
    try:
        return replace(config, **sizes)
    except ConfigError:
        return config
