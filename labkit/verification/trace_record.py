"""A checkpoint folder and prompts -> the tensors of a trace, from labkit's own forward or from transformers'.

Several prompts make one left-padded batch with its mask and positions. Decode steps are greedy, with the KV cache,
one new position a step; each is a group of tensors of its own.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor

from labkit.config import GPT2Config
from labkit.errors import ArgumentError, UnknownNameError
from labkit.generation import KVCache
from labkit.load import folder_of, load_gpt2
from labkit.model import GPT2
from labkit.model.taps import match_taps, tap_names
from labkit.verification.chain import Inputs, left_padded
from labkit.verification.faults import plant_all
from labkit.verification.precision import Precision, dtype_named, sums_in_float32
from labkit.verification.prompts import check_room, choose_prompts, require_count
from labkit.verification.reference import capture, load_reference, new_cache
from labkit.verification.trace import TraceMetadata
from labkit.verification.trace_names import IDS, MASK, POSITIONS, step_prefix

Engine = Literal["hf", "labkit"]
ENGINES: tuple[Engine, ...] = ("hf", "labkit")


class Runner(Protocol):
    """An engine with a KV cache: taps of one pass after another; only the new positions are given."""

    def __call__(self, ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> dict[str, Tensor]:
        """Every tap asked for, and the logits; ``mask`` covers all positions so far, [batch, past + pos]."""


@dataclass(frozen=True)
class Recorded:
    """What ``write_trace`` writes."""

    tensors: dict[str, Tensor]
    metadata: TraceMetadata
    notes: tuple[str, ...]


def record_trace(
    folder: str | Path | None = None,
    *,
    engine: Engine = "hf",
    prompts: Sequence[str] | None = None,
    ids: Sequence[Sequence[int]] | None = None,
    taps: str | Sequence[str] = "all",
    plant: Sequence[str] = (),
    dtype: str = "float32",
    device: str = "cpu",
    steps: int = 0,
) -> Recorded:
    """Run ``folder`` (default: the embedded checkpoint) and keep its taps.

    ``plant`` names faults (``NAME`` or ``NAME:BLOCK``) to plant in labkit's engine; ``steps`` greedy decode steps
    follow the prompt. Raises a ``LabkitError`` where the folder, a prompt or an option cannot be used.

    >>> recorded = record_trace(engine="labkit", ids=[[5, 7, 9]], taps="h.0.attn.k", steps=1)
    >>> {name: list(tensor.shape) for name, tensor in recorded.tensors.items()}
    {'input_ids': [1, 3], 'h.0.attn.k': [1, 6, 3, 32], 'step.0.input_ids': [1, 1], 'step.0.h.0.attn.k': [1, 6, 1, 32]}
    """
    if engine not in ENGINES:
        raise UnknownNameError.near("engine", engine, ENGINES)
    require_count(steps, "steps", "decode steps")
    if plant and engine != "labkit":
        raise ArgumentError("faults are planted in labkit's engine", got=f"engine {engine}", fix="use --engine labkit")
    path = folder_of(folder)
    compute = dtype_named(dtype)
    model = load_gpt2(path, dtype=compute, device=device if engine == "labkit" else "cpu")
    wanted = match_taps(taps, model.config)
    chosen, notes = choose_prompts(path, model.config, prompts, ids)
    check_room(chosen, model.config)
    inputs = left_padded([prompt.ids for prompt in chosen])
    _check_steps(inputs, steps, model.config)
    model = plant_all(model, plant)
    run: Runner
    if engine == "labkit":
        cache = None
        if steps:
            batch, pos = inputs.ids.shape
            cache = KVCache(model.config, capacity=pos + steps, batch=batch, dtype=model.dtype, device=model.device)
        run = _labkit_runner(model, wanted, cache)
    else:
        run = _hf_runner(path, model.config, compute, device, wanted)
    metadata = TraceMetadata(
        engine=_engine_name(engine, plant),
        config=model.config,
        precision=Precision.of(compute),
        device=device,
        weights_sha256=weights_sha256(path),
    )
    return Recorded(dict(_passes(run, inputs, wanted, steps)), metadata, notes)


def weights_sha256(folder: Path) -> str | None:
    """SHA-256 of the folder's model.safetensors; None where the weights lie in several files."""
    path = folder / "model.safetensors"
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _engine_name(engine: Engine, plant: Sequence[str]) -> str:
    name = "labkit" if engine == "labkit" else "transformers"
    return f"{name} with {', '.join(plant)} planted" if plant else name


def _check_steps(inputs: Inputs, steps: int, config: GPT2Config) -> None:
    total = inputs.ids.shape[1] + steps
    if total > config.n_positions:
        raise ArgumentError(
            "the prompt and its decode steps are longer than the model's context",
            expected=f"at most n_positions = {config.n_positions}",
            got=total,
            fix="take fewer steps or a shorter prompt",
        )


def _passes(run: Runner, inputs: Inputs, wanted: tuple[str, ...], steps: int) -> Iterator[tuple[str, Tensor]]:
    """The trace's tensors: the prompt's pass, then each decode step."""
    ids, mask, positions = inputs.ids, inputs.attention_mask, inputs.position_ids
    for number in range(steps + 1):
        prefix = step_prefix(None if number == 0 else number - 1)
        yield prefix + IDS, ids
        if mask is not None and positions is not None:
            yield prefix + MASK, mask[:, -ids.shape[1] :]
            yield prefix + POSITIONS, positions
        taps = run(ids, mask, positions)
        yield from ((prefix + name, taps[name]) for name in wanted)
        ids = taps["logits"][:, -1:].argmax(dim=-1)  # [batch, 1]
        if mask is not None and positions is not None:
            mask = torch.cat([mask, torch.ones_like(ids)], dim=1)  # [batch, past + 1]
            positions = positions[:, -1:] + 1  # [batch, 1]


def _labkit_runner(model: GPT2, wanted: tuple[str, ...], cache: KVCache | None) -> Runner:
    """``cache`` is None where the prompt's pass is the only one."""

    @sums_in_float32()
    def run(ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> dict[str, Tensor]:
        done = model.run(
            ids.to(model.device), taps=[*wanted, "logits"], attention_mask=mask, position_ids=positions, cache=cache
        )
        return {name: value.cpu() for name, value in done.taps.items()}

    return run


def _hf_runner(path: Path, config: GPT2Config, compute: torch.dtype, device: str, wanted: tuple[str, ...]) -> Runner:
    known = set(tap_names(config))
    for name in wanted:
        if name not in known:
            raise UnknownNameError.near("tap of transformers", name, tap_names(config))
    model = load_reference(path, dtype=compute, weight_dtype=compute, config=config).to(device)
    cache = new_cache(model)

    @sums_in_float32()
    def run(ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> dict[str, Tensor]:
        taps: dict[str, Tensor] = {}

        def record(name: str, value: Tensor) -> None:
            if name in wanted or name == "logits":
                own = value[:, :, -ids.shape[1] :] if name.endswith((".attn.k", ".attn.v")) else value
                taps[name] = own.detach().cpu().clone()

        mask, positions = (None if each is None else each.to(device) for each in (mask, positions))
        capture(model, ids.to(device), attention_mask=mask, position_ids=positions, record=record, cache=cache)
        return taps

    return run
