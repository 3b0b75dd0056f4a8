"""A user's torch module or function, a checkpoint folder -> Report: the same verdict as for labkit's own engine.

A module is hooked by a name map, and every stage that the map names is judged; a plain function ids -> logits is
judged by its logits, as the composition of everything from the ids. Nothing stays hooked afterwards.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checkpoint import read_checkpoint
from labkit.config import GPT2Config
from labkit.errors import ArgumentError, ArgumentTypeError, LabkitError, UnknownNameError
from labkit.load import folder_of
from labkit.model.taps import tap_names
from labkit.verification.agreement import merge_agreement
from labkit.verification.chain import Inputs
from labkit.verification.controls import merge_controls
from labkit.verification.detective import Coverage
from labkit.verification.finding import Finding, merge_findings
from labkit.verification.invariants.engine import check_logits
from labkit.verification.name_map import NAME_MAPS, NameMap, Placed, Rules, place_rules
from labkit.verification.precision import Precision, dtype_named
from labkit.verification.prompts import check_room, choose_prompts, room_for
from labkit.verification.readings import OF_AN_ENGINE, Stated, read_again
from labkit.verification.report import Report
from labkit.verification.standard import Case, Standard
from labkit.verification.tokens import TokenResult, compare_tokens, greedy_reference
from labkit.verification.verify import Progress, merge_stages

Run = Callable[[Tensor], dict[str, Tensor]]
"""ids [batch, pos] -> the taps that one forward pass showed."""


def verify_callable(
    fn_or_module: Callable[..., object],
    folder: str | Path | None = None,
    *,
    name_map: str | NameMap | Rules | None = None,
    prompts: Sequence[str] | None = None,
    ids: Sequence[Sequence[int]] | None = None,
    dtype: str | None = None,
    tokens: int = 0,
    engine: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Judge your own engine against the checkpoint in ``folder`` (default: the embedded one), stage by stage.

    ``fn_or_module``: a ``torch.nn.Module`` with a ``name_map`` ("nanogpt", "mingpt", or module path -> tap; see
    ``labkit.verification.name_map``), or any function of ids [batch, pos] that gives logits [batch, pos, vocab], of
    which the logits alone are judged. ``dtype``: what it computes in (default: that of its parameters or logits).
    ``tokens``: greedy tokens to compare after each prompt, for which it is run again for each. It is run as it is: a
    module in training mode keeps its dropout. ``engine`` is the name to report.
    Raises ``UnknownNameError`` for a module or a tap that is not there, ``ArgumentError`` where no logits come back.

    >>> import labkit
    >>> model = labkit.load_gpt2()
    >>> labkit.verify_callable(lambda ids: model(ids.roll(1, dims=1)), ids=[[5, 6]]).first_divergence
    'logits'
    """
    say = progress or (lambda _step: None)
    path = folder_of(folder)
    say("loading the checkpoint")
    config = read_checkpoint(path).config
    chosen, notes = choose_prompts(path, config, prompts, ids, tokens=tokens)
    check_room(chosen, config)
    counts, short = room_for(chosen, config, tokens)
    placed, call = _prepared(fn_or_module, name_map, config)
    run = _runner(fn_or_module, placed, call, config)
    say("running the first prompt")
    shown = [_asked(run, torch.tensor([chosen[0].ids]), fn_or_module, "prompt 1")]
    precision = Precision.of(dtype_named(dtype) if dtype is not None else _dtype_of(fn_or_module, shown[0]))
    say("loading it in transformers, in float64")
    standard, cases = Standard(path, config, precision, ask=_ask(fn_or_module, name_map)), []
    for number, prompt in enumerate(chosen, 1):
        say(f"prompt {number} of {len(chosen)}: every stage")
        rows = torch.tensor([prompt.ids])  # [batch, pos]
        shown += [_asked(run, rows, fn_or_module, f"prompt {number}")] if number > 1 else []
        cases.append(_judged(standard, _in_order(shown[-1], tuple(tap_names(config))), Inputs(rows)))
    again = partial(_asked, run, engine=fn_or_module, what="the greedy tokens")
    results = _greedy_results(again, standard, [list(p.ids) for p in chosen], [c.explained for c in cases], counts)
    agreements = [case.agreement for case in cases if case.agreement is not None]
    return Report(
        checkpoint=path.name,
        engine=engine or _name_of(fn_or_module),
        dtype=precision.describe(),
        planted=(),
        prompts=chosen,
        stages=merge_stages(cases),
        agreement=merge_agreement(agreements) if agreements else None,
        tokens=results,
        controls=merge_controls([case.controls for case in cases]),
        findings=merge_findings([case.findings for case in cases], tap_names(config)),
        precision=standard.precision,
        coverage=Coverage.merged([case.coverage for case in cases]),
        notes=(*notes, *short, *_notes(fn_or_module, placed, shown[0])),
    )


def _ask(engine: object, name_map: object) -> Callable[[str], str]:
    """How to come by a tap that was not shown, in the words of what was given."""
    if name_map is not None:
        return "name the module that gives {} in the name map".format
    if isinstance(engine, nn.Module):
        return "give a name_map with the module that gives {}".format
    return "give a torch module with a name_map that shows {}, or write a trace with it,".format


def _judged(standard: Standard, taps: Mapping[str, Tensor], inputs: Inputs) -> Case:
    """One prompt, judged; what is said of the engine, or how its taps were come by, is told where it is the cause."""
    case = standard.judge(taps, inputs)
    case = replace(case, findings=tuple(map(_laid_out_in_the_map, case.findings)))
    if all(stage.verdict == "same" for stage in case.stages):
        return case
    stated = Stated(standard=standard, words=OF_AN_ENGINE, positions=False, passes=lambda tap: [taps[tap]])
    return read_again(case, standard.scene(taps, inputs), stated)


def _laid_out_in_the_map(finding: Finding) -> Finding:
    """A shape is righted where the user said what a module gives."""
    if finding.kind != "shape" or finding.where == "logits":
        return finding
    how = "a name map's rule does that with its layout: heads_third, merged_heads, packed_qkv, or a function of yours"
    return replace(finding, next_step=f"{finding.next_step}; {how}")


def _asked(run: Run, ids: Tensor, engine: object, what: str) -> dict[str, Tensor]:
    """The taps of one pass; whatever a user's engine raises is told with its place."""
    try:
        return run(ids)
    except LabkitError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise ArgumentError(
            f"the engine raised {type(error).__name__}: {reason}",
            where=f"{_name_of(engine)}, {what}",
            got=f"ids {list(ids.shape)}",
        ) from error


def _prepared(
    engine: Callable[..., object], name_map: str | NameMap | Rules | None, config: GPT2Config
) -> tuple[tuple[Placed, ...], Callable[[Any, Tensor], object]]:
    """The rules on their modules, and how the engine is called."""
    if not callable(engine):
        raise ArgumentTypeError("not an engine", expected="a torch module or a function", got=type(engine).__name__)
    if name_map is None:
        return (), lambda each, ids: each(ids)
    if not isinstance(engine, nn.Module):
        raise ArgumentTypeError(
            "a name map needs a torch module to hook", expected="torch.nn.Module", got=type(engine).__name__
        )
    if isinstance(name_map, str):
        if name_map not in NAME_MAPS:
            raise UnknownNameError.near("name map", name_map, NAME_MAPS)
        name_map = NAME_MAPS[name_map]
    whole = name_map if isinstance(name_map, NameMap) else NameMap(name_map)
    return place_rules(engine, whole, config), whole.call


def _runner(engine: Any, placed: Sequence[Placed], call: Callable[[Any, Tensor], object], config: GPT2Config) -> Run:
    device = next((each.device for each in engine.parameters()), None) if isinstance(engine, nn.Module) else None

    def run(ids: Tensor) -> dict[str, Tensor]:
        given = ids.clone() if device is None else ids.to(device, copy=True)
        taps: dict[str, Tensor] = {}
        with torch.no_grad(), hooked(placed, taps, config):
            result = call(engine, given)
        if "logits" not in taps:
            taps["logits"] = check_logits(_logits_in(result), ids, _name_of(engine))
        return taps

    return run


@contextmanager
def hooked(placed: Sequence[Placed], taps: dict[str, Tensor], config: GPT2Config) -> Iterator[None]:
    """Hooks that write into ``taps`` while this lasts; all removed at the end, also when the forward raised."""
    handles: list[Any] = []
    try:
        for each in placed:
            handles.append(_hook(each, taps, config))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(placed: Placed, taps: dict[str, Tensor], config: GPT2Config) -> Any:
    def note(value: object) -> None:
        tensor = _first_tensor(value)
        if tensor is None:
            raise ArgumentTypeError("the module gives no tensor", where=placed.path, got=type(value).__name__)
        for tap, part in zip(placed.taps, _laid_out(placed, tensor, config), strict=True):
            taps.setdefault(tap, part.detach().cpu().clone())  # a module that is called again keeps its first value

    if placed.rule.side == "input":
        return placed.module.register_forward_pre_hook(lambda _module, inputs: note(inputs))
    return placed.module.register_forward_hook(lambda _module, _inputs, output: note(output))


def _laid_out(placed: Placed, value: Tensor, config: GPT2Config) -> Sequence[Tensor]:
    try:
        parts = placed.rule.layout(value, config)
    except (RuntimeError, ValueError, IndexError) as error:
        raise ArgumentError(
            "the layout does not fit what the module gives",
            where=f"name_map, {placed.path!r}",
            got=f"{list(value.shape)}: {str(error).partition(chr(10))[0]}",
        ) from error
    listed = (parts,) if isinstance(parts, Tensor) else tuple(parts)
    if len(listed) != len(placed.taps):
        raise ArgumentError(
            "the layout gives another number of tensors than there are taps",
            where=f"name_map, {placed.path!r}",
            expected=len(placed.taps),
            got=len(listed),
        )
    return listed


def _first_tensor(value: object) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, tuple | list):
        return next((each for each in value if isinstance(each, Tensor)), None)
    return None


def _logits_in(result: object) -> object:
    """The logits in what a forward returned: itself, its ``logits``, or the first tensor of a tuple."""
    if isinstance(result, Tensor):
        return result
    named = result.get("logits") if isinstance(result, Mapping) else getattr(result, "logits", None)
    if named is not None:
        return named
    first = _first_tensor(result)
    return result if first is None else first


def _in_order(taps: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    return {name: taps[name] for name in names if name in taps}


def _dtype_of(engine: object, taps: Mapping[str, Tensor]) -> torch.dtype:
    parameters = engine.parameters() if isinstance(engine, nn.Module) else iter(())
    return next((each.dtype for each in parameters if each.is_floating_point()), taps["logits"].dtype)


def _name_of(engine: object) -> str:
    if isinstance(engine, nn.Module):
        return type(engine).__name__
    return str(getattr(engine, "__name__", type(engine).__name__))


def _notes(engine: object, placed: Sequence[Placed], taps: Mapping[str, Tensor]) -> Iterator[str]:
    silent = [each.path for each in placed if not any(tap in taps for tap in each.taps)]
    if silent:
        yield f"modules that were not called, so their taps are not judged: {', '.join(dict.fromkeys(silent))}"
    if isinstance(engine, nn.Module) and engine.training:
        yield "the module is in training mode, so its dropout is on where it has any; call .eval() for inference"


def _greedy_results(
    run: Run, standard: Standard, prompts: Sequence[list[int]], explained: Sequence[float], counts: Sequence[int]
) -> tuple[TokenResult, ...]:
    """Greedy continuations by running the engine anew for each token, beside transformers' own."""
    if not any(counts):
        return ()
    reference, results = standard.reference(), []
    for prompt, rounding, room in zip(prompts, explained, counts, strict=True):
        actual: list[int] = []
        for _ in range(room):
            last = run(torch.tensor([[*prompt, *actual]]))["logits"][0, -1]  # [vocab]
            if not bool(torch.isfinite(last).all()):
                break
            actual.append(int(last.argmax()))
        if len(actual) < room:
            position = len(prompt) + len(actual) - 1
            results.append(TokenResult.not_run(f"the logits of position {position} are not finite"))
            continue
        expected = greedy_reference(reference, prompt, room)
        results.append(compare_tokens(actual, expected, prompt, standard.truth_model, rounding))
    return tuple(results)
