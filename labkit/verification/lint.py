"""A trace file -> everything that is wrong with it, before anybody compares numbers.

Metadata, inputs, names, shapes and dtypes are checked from the header; then every value is read once. What stays
open because something before it cannot be used is said in a note.
"""

import difflib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from labkit.config import GPT2Config
from labkit.errors import TraceError
from labkit.load import load_gpt2
from labkit.model.taps import tap_names
from labkit.storage import SafetensorsFile, open_safetensors
from labkit.verification.lint_contents import content_defects, scan
from labkit.verification.lint_defects import Defect, LintReport
from labkit.verification.lint_layout import layout_defects
from labkit.verification.lint_weights import other_weights, unheld_weights
from labkit.verification.padding import unstated_positions
from labkit.verification.trace import STORE, Trace, TraceMetadata, metadata_problems, parse_metadata
from labkit.verification.trace_layout import shape_advice
from labkit.verification.trace_names import (
    INPUT_NAMES,
    allowed_shapes,
    ordered_taps,
    split_block,
    split_step,
    step_prefix,
    tap_of_module,
)
from labkit.verification.trace_sequence import FLOATS, Pass, config_differences, joined_inputs, passes_of
from labkit.verification.trace_sizes import as_recorded, recorded_sizes, size_fix, size_lines
from labkit.words import counted

_SHOWN = 12
"""Names listed in one note."""
_NEARLY_ALL = 3 / 4
"""A pass that records this share of all taps means to record them all."""


def lint_trace(path: str | Path, folder: str | Path | None = None) -> LintReport:
    """Check the trace at ``path``; with ``folder``, against that checkpoint's config and values as well.

    Raises ``FormatError`` where the file is no safetensors file, and what loading the checkpoint raises.

    >>> import tempfile, torch
    >>> from labkit.storage import save_safetensors
    >>> file = Path(tempfile.mkdtemp()) / "bad.safetensors"
    >>> save_safetensors({"input_ids": torch.tensor([[1, 2]])}, file)
    >>> print(lint_trace(file).defects[0])
    [metadata] metadata key 'format' is missing; write 'labkit-trace'
    """
    with open_safetensors(path, mode="copy") as file:
        defects = [Defect(code="metadata", tensor=None, what=e.what + _pair(e), fix=e.fix) for e in _problems(file)]
        checkpoint = None if folder is None else load_gpt2(folder).config
        metadata, notes = _usable_metadata(file, checkpoint)
        if metadata is None:
            return _report(file, file.metadata.get("engine", "unnamed"), (), defects, notes)
        trace = Trace(file, metadata)
        if not defects:
            defects += _config_defects(trace, checkpoint)
            # One line for a size that every tensor has otherwise, not one for each tensor.
            metadata = replace(metadata, config=as_recorded(metadata.config, recorded_sizes(trace)))
            trace = Trace(file, metadata)
        passes: tuple[Pass, ...] = ()
        try:
            passes = passes_of(trace)
            if all(each.inputs.position_ids is None for each in passes):
                notes = (*notes, *unstated_positions(joined_inputs(passes)))
        except TraceError as error:
            defects.append(_input_defect(error, trace))
            notes = (*notes, "shapes and the future are not checked, since the inputs cannot be used")
        defects += _input_dtypes(trace, {each.tensor for each in defects if each.code == "inputs"})
        defects += [*_name_defects(trace), *_dtype_defects(trace), *_shape_defects(trace, passes)]
        defects += _missing(trace)
        notes += _absent(trace)
        defects += content_defects(trace, [scan(trace, name) for name in trace], passes)
        usable = bool(passes) and not any(_unusable(each) for each in defects)
        unheld = list(unheld_weights(trace)) if usable else []
        defects += unheld
        if folder is not None and checkpoint is not None:
            defects += layout_defects(trace, Path(folder), checkpoint) if usable else []
            defects += other_weights(trace, Path(folder), checkpoint) if usable and not unheld else []
            notes += () if usable else ("values are not held against the checkpoint, since the trace cannot be used",)
        return _report(file, metadata.engine, passes, _unrepeated(defects), notes)


def _unusable(defect: Defect) -> bool:
    """Whether values cannot be held against a checkpoint; inputs in another dtype are read as if they were I64."""
    inputs = defect.tensor is not None and split_step(defect.tensor)[1] in INPUT_NAMES
    return defect.code in ("metadata", "shape") or (defect.code == "dtype" and not inputs)


def _config_defects(trace: Trace, checkpoint: GPT2Config | None) -> list[Defect]:
    """Sizes that config, tensors and checkpoint do not share, and the checkpoint's other fields."""
    sizes, own = size_lines(trace, checkpoint), "write the checkpoint's own config.json"
    fix = size_fix(trace, sizes, checkpoint)
    defects = [Defect(code="metadata", tensor=None, what=line, fix=fix) for line in sizes.values()]
    others = () if checkpoint is None else config_differences(trace.config, checkpoint)
    return defects + [
        Defect(code="metadata", tensor=None, what=line, fix=own)
        for line in others
        if line.partition(" ")[0] not in sizes
    ]


def _unrepeated(defects: list[Defect]) -> list[Defect]:
    """One layout defect a tensor: the pattern's is seen with and without the checkpoint."""
    kept: dict[object, Defect] = {}
    for each in defects:
        kept.setdefault((each.code, each.tensor) if each.code == "layout" else each, each)
    return list(kept.values())


def _problems(file: SafetensorsFile) -> tuple[TraceError, ...]:
    return metadata_problems(file.metadata)


def _pair(error: TraceError) -> str:
    expected = [f"expected {error.expected}"] if error.expected is not None else []
    got = [f"got {error.got}"] if error.got is not None else []
    return f" ({', '.join(expected + got)})" if expected or got else ""


def _usable_metadata(
    file: SafetensorsFile, checkpoint: GPT2Config | None
) -> tuple[TraceMetadata | None, tuple[str, ...]]:
    """The metadata, or as much of it as there is over the checkpoint's config."""
    if not metadata_problems(file.metadata):
        return parse_metadata(file.metadata), ()
    stated = {"format": "labkit-trace", "version": "1", "model_type": "gpt2", "engine": "unnamed", "device": "cpu"}
    stated |= dict.fromkeys(("compute_dtype", "accumulate_dtype", "weight_dtype"), "float32")
    for key, value in file.metadata.items():
        if not metadata_problems({**stated, "config": "{}", key: value}):
            stated[key] = value
    if "config" not in stated and checkpoint is None:
        return None, ("names, shapes and values are not checked without a config; give --model",)
    if "config" not in stated and checkpoint is not None:
        stated["config"] = TraceMetadata(engine="", config=checkpoint).fields()["config"]
    return parse_metadata(stated), ()


def _report(
    file: SafetensorsFile, engine: str, passes: tuple[Pass, ...], defects: list[Defect], notes: tuple[str, ...]
) -> LintReport:
    taps = {split_step(name)[1] for name in file} - set(INPUT_NAMES)
    return LintReport(
        path=file.path,
        engine=engine,
        tensors=len(file),
        taps=len(taps),
        steps=max(len(passes) - 1, 0),
        defects=tuple(defects),
        notes=notes,
    )


def _input_defect(error: TraceError, trace: Trace) -> Defect:
    where = str(error.where).removeprefix(f"{trace.path}").removeprefix(", ")
    missing = "is missing" in error.what
    return Defect(
        code="missing" if missing else "inputs",
        tensor=where or None,
        what=error.what + _pair(error),
        fix=error.fix or "write I64 [batch, pos]",
    )


def _name_defects(trace: Trace) -> Iterator[Defect]:
    known = {*INPUT_NAMES, *ordered_taps(trace.config)}
    for name in trace:
        step, tap = split_step(name)
        if tap not in known:
            yield Defect(code="extra", tensor=name, what="no tap has this name", fix=_rename(step, tap, trace.config))


def _rename(step: int | None, name: str, config: GPT2Config) -> str:
    """What an unknown tensor may have been meant as."""
    prefix = step_prefix(step)
    made = tap_of_module(name)
    block = split_block(made or name)[0]
    if block and int(block.split(".")[1]) >= config.n_layer:
        return f"the config has n_layer = {config.n_layer}: blocks 0 to {config.n_layer - 1}"
    if made is not None and made in ordered_taps(config):
        return f"that module's output is recorded as {prefix + made}"
    near = difflib.get_close_matches(name, (*INPUT_NAMES, *ordered_taps(config)), n=3, cutoff=0.6)
    return f"did you mean {', '.join(prefix + each for each in near)}?" if near else "leave it out"


def _dtype_defects(trace: Trace) -> Iterator[Defect]:
    taps = set(ordered_taps(trace.config))
    for name in trace:
        dtype, tap = trace.entry(name).dtype, split_step(name)[1]
        if tap in taps and dtype not in FLOATS:
            yield Defect(code="dtype", tensor=name, what=f"a tap may not be {dtype}", fix=f"store {', '.join(FLOATS)}")


def _input_dtypes(trace: Trace, told: set[str | None]) -> Iterator[Defect]:
    """Inputs in another dtype, but for one that is refused already."""
    for name, what in trace.other_inputs().items():
        if name not in told:
            yield Defect(code="dtype", tensor=name, what=what, fix=STORE)


def _shape_defects(trace: Trace, passes: tuple[Pass, ...]) -> Iterator[Defect]:
    taps = set(ordered_taps(trace.config))
    for each in passes:
        for name in trace:
            step, tap = split_step(name)
            if step != each.step or tap not in taps:
                continue
            got, allowed = trace.entry(name).shape, allowed_shapes(tap, trace.config, each.sizes)
            if got not in allowed:
                yield Defect(
                    code="shape",
                    tensor=name,
                    what=f"the shape is {list(got)}, not {' or '.join(str(list(shape)) for shape in allowed)}",
                    fix=shape_advice(tap, got, allowed),
                )


def _recorded(trace: Trace) -> dict[int | None, set[str]]:
    """The taps of each pass; a packed or merged tap stands for those it holds."""
    found: dict[int | None, set[str]] = {step: set() for step in trace.steps}
    for name in trace:
        step, tap = split_step(name)
        if tap in INPUT_NAMES:
            continue
        block, stage = split_block(tap)
        packed = {"attn.c_attn": [f"{block}attn.{each}" for each in "qkv"], "attn.merged": [f"{block}attn.z"]}
        found[step].update([tap, *packed.get(stage, [])])
    return found


def _missing(trace: Trace) -> Iterator[Defect]:
    """Gaps: no tap at all, taps that are not there although the rest leads one to expect them."""
    recorded = _recorded(trace)
    if not set().union(*recorded.values()) & set(tap_names(trace.config)):
        yield Defect(code="missing", tensor=None, what="there is no tap at all", fix="record at least logits")
    for step, taps in recorded.items():
        gaps = _gaps(taps, recorded, trace.config)
        empty = _empty_blocks(taps, gaps)
        if empty:
            there = sorted({int(split_block(tap)[0].split(".")[1]) for tap in taps if split_block(tap)[0]})
            yield Defect(
                code="missing",
                tensor=f"{step_prefix(step)}{empty[0]}*",
                what=f"the config has n_layer = {trace.config.n_layer}, but of {counted(len(there), 'block')} alone "
                f"({_ranges(there)}) anything is recorded",
                fix="record the others too, or leave them out everywhere; or write the checkpoint's own config.json",
            )
        for tap in (tap for tap in gaps if split_block(tap)[0] not in empty):
            yield Defect(
                code="missing",
                tensor=step_prefix(step) + tap,
                what="not recorded, though its neighbours are",
                fix="record it, or leave it out everywhere",
            )


def _empty_blocks(taps: set[str], gaps: list[str]) -> list[str]:
    """The prefixes of blocks that gaps are in and of which no tap is there."""
    there = {split_block(tap)[0] for tap in taps}
    return list(dict.fromkeys(split_block(tap)[0] for tap in gaps if split_block(tap)[0] not in there))


def _ranges(numbers: list[int]) -> str:
    """Numbers with those that follow each other drawn together.

    >>> _ranges([0, 1, 2, 5])
    '0 to 2, 5'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _gaps(taps: set[str], recorded: dict[int | None, set[str]], config: GPT2Config) -> list[str]:
    """Taps that one pass lacks, though most blocks or most passes have them, or nearly all others are there."""
    every = tap_names(config)
    nearly_all = len(taps & set(every)) >= _NEARLY_ALL * len(every)
    blocks = Counter(split_block(tap)[1] for tap in taps if split_block(tap)[0])
    passes = Counter(tap for each in recorded.values() for tap in each)
    return [
        tap
        for tap in every
        if tap not in taps
        and (
            nearly_all
            or (split_block(tap)[0] and 2 * blocks[split_block(tap)[1]] > config.n_layer)
            or 2 * passes[tap] > len(recorded)
        )
    ]


def _absent(trace: Trace) -> tuple[str, ...]:
    """Taps that no pass recorded and that are no gaps: a trace may be partial."""
    recorded = _recorded(trace)
    everywhere = set().union(*recorded.values())
    gaps = {tap for taps in recorded.values() for tap in _gaps(taps, recorded, trace.config)}
    absent = [tap for tap in tap_names(trace.config) if tap not in everywhere and tap not in gaps]
    stages = {split_block(tap)[1] for tap in everywhere if split_block(tap)[0]}
    names = list(dict.fromkeys(_everywhere(tap, stages) for tap in absent))
    if not names:
        return ()
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (f"not recorded: {', '.join(names[:_SHOWN])}{more}",)


def _everywhere(tap: str, stages: set[str]) -> str:
    """``h.*.stage`` for a tap whose stage no block recorded."""
    block, stage = split_block(tap)
    return f"h.*.{stage}" if block and stage not in stages else tap
