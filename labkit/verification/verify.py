"""folder -> Report: labkit and transformers on the same prompts, stage by stage, logits and greedy tokens.

The truth is transformers in float64 on weights read independently. What rounding explains is measured on
transformers' own runs in the engine's dtype, in two summation orders; a third order serves as the control.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.config import GPT2Config
from labkit.errors import ArgumentError, LabkitError, MissingFileError
from labkit.generation import greedy
from labkit.load import embedded, load_gpt2
from labkit.model import GPT2
from labkit.tokenizer import Tokenizer
from labkit.verification.chain import Inputs, build_chain
from labkit.verification.controls import run_controls
from labkit.verification.faults import parse_fault
from labkit.verification.orders import capture_in_order
from labkit.verification.precision import Precision, dtype_named
from labkit.verification.reference import capture, load_reference, parameters_of
from labkit.verification.report import Agreement, Controls, Prompt, Report
from labkit.verification.tokens import TokenResult, compare_tokens, greedy_reference
from labkit.verification.verdict import StageResult, judge_stage, measure_floor, propagate

PROMPTS = (
    "It was a bright cold morning, and the whole family had come down to the door to see the carriage go.",
    "“I am sure,” said he, “that you know very little of the matter",
)
"""What is run where no prompt is given: two sentences, so that attention has something to attend to."""

FLOOR_ORDER = 1
CONTROL_ORDER = 2
"""Seeds of the summation orders: one measures the floor beside the plain order, the other is kept for the control."""

Progress = Callable[[str], None]


def verify(
    folder: str | Path | None = None,
    *,
    prompts: Sequence[str] | None = None,
    ids: Sequence[Sequence[int]] | None = None,
    plant: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    tokens: int = 20,
    progress: Progress | None = None,
) -> Report:
    """Run ``folder`` (default: the embedded checkpoint) through labkit and transformers and compare every stage.

    ``prompts`` are texts, ``ids`` token ids instead of texts; ``plant`` names a fault (``NAME`` or ``NAME:BLOCK``) to
    plant in labkit's side; ``tokens`` greedy tokens are compared after each prompt; ``progress`` is told each step.
    Raises a ``LabkitError`` where the folder, a prompt or an option cannot be used.

    >>> import labkit
    >>> report = labkit.verify(prompts=["It is a truth"], tokens=4)
    >>> report.verdict, report.first_divergence
    ('same', None)
    >>> labkit.verify(prompts=["It is a truth"], tokens=4, plant="erf-gelu:1").first_divergence
    'h.1.mlp.post'
    """
    say = progress or (lambda _step: None)
    path = embedded() if folder is None else Path(folder)
    say("loading the checkpoint")
    number_type = dtype_named(dtype)
    model = load_gpt2(path, dtype=number_type, device=device)
    chosen, notes = choose_prompts(path, model.config, prompts, ids)
    _check_room(chosen, model.config, tokens)
    candidate = model
    if plant is not None:
        fault, block = parse_fault(plant)
        candidate = fault.plant(model, block)
    say("loading it in transformers, in float64 and again in " + dtype)
    bench = _Bench(path, model.config, number_type)
    cases = []
    for number, prompt in enumerate(chosen, 1):
        say(f"prompt {number} of {len(chosen)}: every stage")
        rows = torch.tensor([prompt.ids])  # [batch, pos]
        taps = {name: value.cpu() for name, value in candidate.run(rows, taps="all").taps.items()}
        cases.append(bench.judge(taps, Inputs(rows)))
    results = []
    for number, (prompt, case) in enumerate(zip(chosen, cases, strict=True), 1):
        say(f"prompt {number} of {len(chosen)}: {tokens} greedy tokens")
        results.append(bench.compare_greedy(candidate, prompt, tokens, case.explained))
    return Report(
        checkpoint=path.name,
        engine="labkit",
        dtype=dtype,
        planted=plant,
        prompts=chosen,
        stages=merge_stages([case.stages for case in cases]),
        agreement=merge_agreement([case.agreement for case in cases]),
        tokens=tuple(results),
        controls=merge_controls([case.controls for case in cases]),
        notes=notes,
    )


@dataclass(frozen=True)
class _Case:
    """One prompt, judged."""

    stages: tuple[StageResult, ...]
    controls: Controls
    agreement: Agreement
    explained: float
    """The largest logit error that rounding explains."""


class _Bench:
    """transformers' model of one checkpoint, in float64 and in the dtype under test."""

    def __init__(self, folder: Path, config: GPT2Config, dtype: torch.dtype) -> None:
        self.config = config
        self.precision = Precision.of(dtype)
        self.truth_model = load_reference(folder, weight_dtype=dtype, config=config)
        self.reference = load_reference(folder, dtype=dtype, config=config)
        self.weights = parameters_of(self.truth_model)

    def judge(self, candidate: Mapping[str, Tensor], inputs: Inputs) -> _Case:
        stages = build_chain(self.config, self.weights, inputs)
        truth = propagate(stages, self._capture(self.truth_model, inputs), inputs, self.precision)
        runs = [self._capture(self.reference, inputs), self._capture_in_order(inputs, FLOOR_ORDER)]
        floor = measure_floor(truth, runs, inputs)
        results = tuple(
            judge_stage(stage, candidate, truth, floor[stage.tap], inputs, self.precision) for stage in stages
        )
        clean = self._capture_in_order(inputs, CONTROL_ORDER)
        controls = run_controls(stages, clean, truth, floor, inputs, self.precision)
        logits = truth.expected["logits"]
        explained = float(floor["logits"].budget(logits).max())
        return _Case(results, controls, agree(candidate["logits"], logits.output), explained)

    def compare_greedy(self, candidate: GPT2, prompt: Prompt, count: int, explained: float) -> TokenResult:
        actual = greedy(candidate, list(prompt.ids), count)
        expected = greedy_reference(self.reference, prompt.ids, count)
        return compare_tokens(actual, expected, prompt.ids, self.truth_model, explained)

    def _capture(self, model: Any, inputs: Inputs) -> dict[str, Tensor]:
        return capture(model, inputs.ids, attention_mask=inputs.attention_mask, position_ids=inputs.position_ids)

    def _capture_in_order(self, inputs: Inputs, seed: int) -> dict[str, Tensor]:
        return capture_in_order(
            self.reference,
            inputs.ids,
            seed,
            attention_mask=inputs.attention_mask,
            position_ids=inputs.position_ids,
        )


def choose_prompts(
    folder: Path, config: GPT2Config, prompts: Sequence[str] | None, ids: Sequence[Sequence[int]] | None
) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """The prompts to run and notes on how they were chosen; texts need the folder's tokenizer."""
    if ids is not None:
        chosen = tuple(Prompt(text=None, ids=tuple(int(i) for i in row)) for row in ids)
        return _not_empty(chosen), ()
    tokenizer = _tokenizer(folder, config)
    if tokenizer is None:
        if prompts is not None:
            raise MissingFileError(
                "no tokenizer files, so a text cannot be encoded", where=folder, fix="give --ids instead"
            )
        generator = torch.Generator().manual_seed(0)
        count = min(24, config.n_positions)
        row = torch.randint(config.vocab_size, (count,), generator=generator).tolist()
        return (Prompt(text=None, ids=tuple(row)),), ("no tokenizer files: ids drawn at random (seed 0) were used",)
    texts = PROMPTS if prompts is None else tuple(prompts)
    chosen = tuple(Prompt(text=text, ids=tuple(tokenizer.encode(text))) for text in texts)
    if prompts is None:
        chosen = tuple(replace(prompt, ids=prompt.ids[: config.n_positions]) for prompt in chosen)
    return _not_empty(chosen), ()


def _not_empty(prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
    if not prompts:
        raise ArgumentError("there is no prompt", fix="give at least one")
    for number, prompt in enumerate(prompts, 1):
        if not prompt.ids:
            raise ArgumentError(
                f"prompt {number} has no tokens", got=prompt.describe(), fix="give a text with a character"
            )
    return prompts


def _tokenizer(folder: Path, config: GPT2Config) -> Tokenizer | None:
    if (folder / "tokenizer.json").is_file() or (folder / "vocab.json").is_file():
        return Tokenizer.from_folder(folder)
    if config.vocab_size != GPT2Config.vocab_size:
        return None
    try:
        return Tokenizer.gpt2()
    except LabkitError:
        return None


def _check_room(prompts: tuple[Prompt, ...], config: GPT2Config, tokens: int) -> None:
    if tokens < 0:
        raise ArgumentError("the number of greedy tokens is negative", got=tokens)
    for number, prompt in enumerate(prompts, 1):
        if len(prompt.ids) > config.n_positions:
            raise ArgumentError(
                f"prompt {number} is longer than the model's context",
                expected=f"at most n_positions = {config.n_positions} tokens",
                got=f"{len(prompt.ids)} tokens",
                fix="shorten it",
            )


def agree(actual: Tensor, expected: Tensor) -> Agreement:
    """Pearson's r and top-1, top-5 agreement of logits [batch, pos, vocab]."""
    a, e = actual.double().flatten(0, -2), expected.double().flatten(0, -2)  # [rows, vocab]
    both = torch.stack([a.flatten(), e.flatten()])  # [2, rows * vocab]
    k = min(5, a.shape[-1])
    top_a, top_e = a.topk(k).indices, e.topk(k).indices  # [rows, k]
    shared = (top_a[:, :, None] == top_e[:, None, :]).any(dim=-1).double().mean()
    return Agreement(
        pearson=float(torch.corrcoef(both)[0, 1]),
        top_1=float((top_a[:, 0] == top_e[:, 0]).double().mean()),
        top_5=float(shared),
    )


def merge_agreement(parts: Sequence[Agreement]) -> Agreement:
    """The least of several prompts."""
    return Agreement(
        pearson=min(part.pearson for part in parts),
        top_1=min(part.top_1 for part in parts),
        top_5=min(part.top_5 for part in parts),
    )


def merge_stages(cases: Sequence[Sequence[StageResult]]) -> tuple[StageResult, ...]:
    """Stage by stage, the prompt that takes the most of its budget."""
    return tuple(max(results, key=_severity) for results in zip(*cases, strict=True))


def _severity(result: StageResult) -> tuple[bool, float]:
    return result.verdict == "differs", max(
        result.used, result.local_used if not math.isnan(result.local_used) else 0.0
    )


def merge_controls(parts: Sequence[Controls]) -> Controls:
    """The worst of several prompts."""
    strays = max(parts, key=lambda part: part.reference_used)
    return Controls(
        chain_error=max(part.chain_error for part in parts),
        chain_holds=all(part.chain_holds for part in parts),
        reference_used=strays.reference_used,
        reference_strays_at=strays.reference_strays_at,
        clean_used=max(part.clean_used for part in parts),
        clean_accused=tuple(dict.fromkeys(name for part in parts for name in part.clean_accused)),
        planted=sum(part.planted for part in parts),
        planted_missed=tuple(dict.fromkeys(name for part in parts for name in part.planted_missed)),
    )
