"""trace file, checkpoint folder -> Report: the same verdict as for a running engine, from the file alone."""

from pathlib import Path

import torch

from labkit.checkpoint import read_checkpoint
from labkit.config import GPT2Config
from labkit.errors import TraceError
from labkit.hub.released import sha256_of
from labkit.load import folder_of
from labkit.verification.chain import Inputs
from labkit.verification.hypotheses import Scene
from labkit.verification.padding import unstated_positions
from labkit.verification.prompts import Prompt
from labkit.verification.readings import OF_A_TRACE, READINGS, Stated, read_again
from labkit.verification.report import Report
from labkit.verification.standard import Case, Standard
from labkit.verification.tokens import TokenResult
from labkit.verification.trace import Trace, open_trace
from labkit.verification.trace_next import NextTap, choose_next
from labkit.verification.trace_record import weights_sha256
from labkit.verification.trace_sequence import TraceSequence, config_differences
from labkit.verification.trace_sizes import size_fix, size_lines
from labkit.verification.verify import Progress
from labkit.words import counted


def verify_trace(path: str | Path, folder: str | Path | None = None, *, progress: Progress | None = None) -> Report:
    """Hold the trace at ``path`` against the checkpoint in ``folder`` (default: the embedded one).

    The precision is the one that the trace declares. Decode steps are judged as one sequence with their prompt. A
    trace of some taps only is judged on what it has; ``next_tap`` of the report is the tap to record next.
    Raises ``TraceError`` where the trace cannot be used.

    >>> import tempfile
    >>> from labkit.verification.trace import write_trace
    >>> from labkit.verification.trace_record import record_trace
    >>> file = Path(tempfile.mkdtemp()) / "engine.safetensors"
    >>> run = record_trace(engine="labkit", ids=[[5, 7, 9]], taps=["h.*.resid_post", "logits"], plant=["erf-gelu:2"])
    >>> write_trace(file, run.tensors, run.metadata)
    >>> report = verify_trace(file)
    >>> report.first_divergence, report.next_tap
    ('h.2.resid_post', 'h.2.attn.z')
    """
    say = progress or (lambda _step: None)
    place = folder_of(folder)
    with open_trace(path) as trace:
        say("loading the checkpoint")
        config = read_checkpoint(place).config
        notes = _config_notes(trace, config)
        sequence = TraceSequence(trace)
        if not len(sequence):
            named = f" ({', '.join(sequence.unknown[:3])} are no taps: labkit lint-trace says what to call them)"
            fix = f"record at least logits{named if sequence.unknown else ''}"
            raise TraceError("the trace holds no tap that every pass recorded", where=path, fix=fix)
        say("loading it in transformers, in float64")
        standard = Standard(place, config, trace.metadata.precision)
        say("every recorded stage")
        case = standard.judge(sequence, sequence.inputs)
        scene = standard.scene(sequence, sequence.inputs)
        if any(stage.verdict == "differs" for stage in case.stages):
            say("what the trace says of itself")
            stated = Stated(
                standard=standard, words=OF_A_TRACE, positions=sequence.states_positions, passes=sequence.by_pass
            )
            case = read_again(case, scene, stated)
        following = _next_tap(scene, case)
        if not sequence.states_positions and all(each.cause != "positions-unstated" for each in case.findings):
            notes += unstated_positions(sequence.inputs)
        tokens, choices = _step_tokens(standard, sequence, case.explained)
        notes += (*_contents_notes(trace, sequence), *_weights_notes(trace, place), *sequence.stale_cache(), *choices)
        return Report(
            checkpoint=place.name,
            engine=trace.metadata.engine,
            dtype=trace.metadata.precision.describe(),
            planted=(),
            prompts=_prompts(sequence.inputs),
            stages=case.stages,
            agreement=case.agreement,
            tokens=tokens,
            controls=case.controls,
            findings=case.findings,
            precision=standard.precision,
            coverage=case.coverage,
            trace_sha256=sha256_of(Path(path)),
            notes=notes if following is None else (*notes, str(following)),
            next_tap=_asked_for(case) if following is None else following.tap,
        )


def _next_tap(scene: Scene, case: Case) -> NextTap | None:
    """What to record next where the first origin was judged over stages that are not in the trace, and has no cause."""
    told = {tap for finding in case.findings if finding.cause in READINGS for tap in finding.span}
    origins = [stage.name for stage in case.stages if stage.cause == "local" and stage.name not in told]
    tied = any(finding.kind == "tie" and finding.where == origins[0] for finding in case.findings) if origins else False
    return choose_next(scene.stages, scene.candidate, origins[0]) if origins and not tied else None


def _asked_for(case: Case) -> str | None:
    """The tap that the first finding asks for, to tell its causes apart."""
    return next((finding.next_tap for finding in case.findings), None)


def _step_tokens(
    standard: Standard, sequence: TraceSequence, explained: float
) -> tuple[tuple[TokenResult, ...], tuple[str, ...]]:
    """The ids that decode steps were given against the truth's first choices; a note where a row was not decoded greedily.

    The truth is given the trace's own ids, so that one other choice does not make all that follow differ.
    """
    if not sequence.step_count:
        return (), ()
    inputs, start = sequence.inputs, sequence.prompt_length
    with torch.inference_mode():
        logits = standard.truth_model(
            input_ids=inputs.ids,
            attention_mask=inputs.attention_mask,
            position_ids=inputs.position_ids,
            use_cache=False,
            logits_to_keep=inputs.ids.shape[1] - start + 1,
        ).logits[:, :-1]  # [batch, step, vocab]
    given = inputs.ids[:, start:]  # [batch, step]
    behind = logits.amax(dim=-1) - logits.gather(-1, given[..., None])[..., 0]  # [batch, step]
    results, notes = [], []
    for row, margins in enumerate(behind):
        chosen, best = given[row].tolist(), logits[row].argmax(dim=-1).tolist()
        worst = int(margins.argmax())
        if float(margins[worst]) > 2 * explained:
            notes.append(
                f"prompt {row + 1}: position {start + worst} was given id {chosen[worst]}, where the truth's first choice is "
                f"{best[worst]}, {float(margins[worst]):.2g} logits ahead (rounding explains {explained:.1g}): not greedy"
            )
            continue
        parted = next((step for step, pair in enumerate(zip(chosen, best, strict=True)) if pair[0] != pair[1]), None)
        results.append(
            TokenResult(
                actual=tuple(chosen),
                expected=tuple(best),
                verdict="same" if parted is None else "coin flip",
                parted_at=parted,
                margin=None if parted is None else float(margins[parted]),
                explained=None if parted is None else explained,
            )
        )
    return tuple(results), tuple(notes)


def _config_notes(trace: Trace, config: GPT2Config) -> tuple[str, ...]:
    """A note for each field of the config that is the checkpoint's to say; raises where the sizes are another model's."""
    lines = size_lines(trace, config)
    if lines:
        what = f"the trace is of another model: {'; '.join(lines.values())}"
        raise TraceError(what, where=trace.path, fix=size_fix(trace, lines, config))
    return tuple(f"{line}: the checkpoint's counts" for line in config_differences(trace.config, config))


def _contents_notes(trace: Trace, sequence: TraceSequence) -> tuple[str, ...]:
    notes = [f"{name}: {what}; read as if it were" for name, what in trace.other_inputs().items()]
    if sequence.step_count:
        notes.append(f"the prompt and {counted(sequence.step_count, 'decode step')} were judged as one sequence")
    if sequence.partly:
        notes.append(f"left out, since not every pass recorded them: {', '.join(sequence.partly)}")
    if sequence.unknown:
        notes.append(f"left out, since they are no taps: {', '.join(sequence.unknown)}; labkit lint-trace says more")
    return tuple(notes)


def _weights_notes(trace: Trace, folder: Path) -> tuple[str, ...]:
    stated = trace.metadata.weights_sha256
    if stated is None:
        return ()
    found = weights_sha256(folder)
    if found is None or found == stated:
        return ()
    return (f"the trace was made with other weights: SHA-256 {stated[:12]}…, the checkpoint's is {found[:12]}…",)


def _prompts(inputs: Inputs) -> tuple[Prompt, ...]:
    """Each row's ids without its padding."""
    rows = zip(inputs.ids, inputs.real, strict=True)
    return tuple(Prompt(text=None, ids=tuple(row[real].tolist())) for row, real in rows)
