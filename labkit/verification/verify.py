"""folder -> Report: labkit and transformers on the same prompts, stage by stage, logits and greedy tokens."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from labkit.errors import NonFiniteError
from labkit.generation import greedy
from labkit.load import folder_of, load_gpt2
from labkit.model import GPT2, tap_names
from labkit.verification.agreement import merge_agreement
from labkit.verification.chain import Inputs
from labkit.verification.controls import merge_controls
from labkit.verification.detective import Coverage
from labkit.verification.faults import plant_all, plantings
from labkit.verification.finding import merge_findings
from labkit.verification.precision import Precision, dtype_named, sums_in_float32
from labkit.verification.prompts import Prompt, check_room, choose_prompts, room_for
from labkit.verification.report import Report
from labkit.verification.standard import Case, Standard
from labkit.verification.streams import Forward
from labkit.verification.threads import threads_for
from labkit.verification.tokens import TokenResult, compare_tokens, greedy_reference
from labkit.verification.verdict import StageResult, merge_results
from labkit.words import counted

Progress = Callable[[str], None]


def verify(
    folder: str | Path | None = None,
    *,
    prompts: Sequence[str] | None = None,
    ids: Sequence[Sequence[int]] | None = None,
    plant: str | Sequence[str] | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    tokens: int = 20,
    progress: Progress | None = None,
) -> Report:
    """Run ``folder`` (default: the embedded checkpoint) through labkit and transformers and compare every stage.

    ``prompts`` are texts, ``ids`` token ids instead of texts; ``plant`` names a fault (``NAME`` or ``NAME:BLOCK``) to
    plant in labkit's side, or several; ``tokens`` greedy tokens are compared after each prompt, or as many as the
    model's context has room for; ``progress`` is told each step.
    Raises a ``LabkitError`` where the folder, a prompt or an option cannot be used.

    >>> import labkit
    >>> report = labkit.verify(prompts=["It is a truth"], tokens=4)
    >>> report.verdict, report.first_divergence
    ('same', None)
    >>> labkit.verify(prompts=["It is a truth"], tokens=4, plant="erf-gelu:1").first_divergence
    'h.1.mlp.post'
    """
    say = progress or (lambda _step: None)
    path = folder_of(folder)
    number_type = dtype_named(dtype)
    say("loading the checkpoint")
    candidate = load_gpt2(path, dtype=number_type, device=device)
    planted = plantings(plant)
    candidate = plant_all(candidate, planted)
    chosen, notes = choose_prompts(path, candidate.config, prompts, ids, tokens=tokens)
    check_room(chosen, candidate.config)
    counts, short = room_for(chosen, candidate.config, tokens)
    notes += short
    say("loading it in transformers, in float64")
    standard = Standard(path, candidate.config, Precision.of(number_type))
    cases = []
    for number, prompt in enumerate(chosen, 1):
        say(f"prompt {number} of {len(chosen)}: every stage")
        rows = torch.tensor([prompt.ids])  # [batch, pos]
        cases.append(standard.judge(engine_forward(candidate, rows), Inputs(rows)))
    say(f"{counted(tokens, 'greedy token')} after each prompt")
    results = compare_greedy(standard, candidate, chosen, cases, counts)
    agreements = [case.agreement for case in cases if case.agreement is not None]
    stages = merge_stages(cases)
    if planted and all(stage.verdict == "same" for stage in stages):
        say("no planted fault was seen: measuring the effect")
        right = load_gpt2(path, dtype=number_type, device=device)
        notes += tuple(_unseen(text, right, standard, chosen) for text in planted)
    return Report(
        checkpoint=path.name,
        engine="labkit",
        dtype=dtype,
        planted=planted,
        prompts=chosen,
        stages=stages,
        agreement=merge_agreement(agreements),
        tokens=results,
        controls=merge_controls([case.controls for case in cases]),
        findings=merge_findings([case.findings for case in cases], tap_names(candidate.config)),
        precision=standard.precision,
        coverage=Coverage.merged([case.coverage for case in cases]),
        device=device,
        notes=notes,
    )


def _unseen(plant: str, right: GPT2, standard: Standard, prompts: Sequence[Prompt]) -> str:
    """What a fault that was not seen does: the most that it moves any element, in that element's budget, and where."""
    wrong, largest = plant_all(right, (plant,)), (0.0, "")
    for prompt in prompts:
        rows = torch.tensor([prompt.ids])  # [batch, pos]
        moved = standard.effect(engine_forward(wrong, rows), engine_forward(right, rows), Inputs(rows))
        largest = max(largest, *((share, tap) for tap, share in moved.items()))
    effect, where = largest
    if effect == 0:
        return f"the planted {plant} was not seen: on these prompts it changes nothing at all"
    size = f"and moves no value by more than {effect:.2g} of its budget ({where})"
    return f"the planted {plant} was not seen: it lies below rounding, {size}"


def engine_forward(model: GPT2, rows: Tensor) -> Forward:
    """labkit's own forward on ids [batch, pos], handing over each tap as it is computed."""

    @sums_in_float32()
    def run(record: Callable[[str, Tensor], None]) -> None:
        def keep(name: str) -> Callable[[Tensor], Tensor]:
            def note(value: Tensor) -> Tensor:
                record(name, value.cpu())
                return value

            return note

        model.run(rows, replace={name: keep(name) for name in tap_names(model.config)})

    return run


def compare_greedy(
    standard: Standard, candidate: GPT2, prompts: Sequence[Prompt], cases: Sequence[Case], counts: Sequence[int]
) -> tuple[TokenResult, ...]:
    """Greedy continuations of every prompt by the candidate and by transformers, of ``counts`` tokens; none of no tokens."""
    if not any(counts):
        return ()
    reference = standard.reference()
    results = []
    with threads_for(standard.config):
        for prompt, case, count in zip(prompts, cases, counts, strict=True):
            try:
                actual = greedy(candidate, list(prompt.ids), count)
            except NonFiniteError as error:
                results.append(TokenResult.not_run(str(error)))
                continue
            expected = greedy_reference(reference, prompt.ids, count)
            results.append(compare_tokens(actual, expected, prompt.ids, standard.truth_model, case.explained))
    return tuple(results)


def merge_stages(cases: Sequence[Case]) -> tuple[StageResult, ...]:
    """Stage by stage, the worst of all prompts."""
    return tuple(merge_results(results) for results in zip(*(case.stages for case in cases), strict=True))
