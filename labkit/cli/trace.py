"""``labkit trace``, ``labkit lint-trace``, ``labkit compare``: trace files of any engine; ``labkit golden``: its unit tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from labkit.cli.console import progress, show, write_json
from labkit.cli.faults import check_faults
from labkit.cli.prompts import Folder, rows_of
from labkit.errors import ArgumentError
from labkit.outside import safe
from labkit.words import counted

Json = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write JSON to a file; - is standard output.")]
Texts = Annotated[list[str] | None, typer.Option(help="A text to run; several make one padded batch.")]
Rows = Annotated[list[str] | None, typer.Option(help="Token ids to run, as 1,2,3; several make a batch.")]
Model = Annotated[Path | None, typer.Option("--model", metavar="FOLDER", help="The checkpoint that was run.")]


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    app.command()(trace)
    app.command("lint-trace")(lint)
    app.command()(compare)
    app.command()(golden)


def trace(
    folder: Folder = None,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The trace file to write.")],
    engine: Annotated[Literal["hf", "labkit"], typer.Option(help="transformers or labkit.")] = "hf",
    prompt: Texts = None,
    ids: Rows = None,
    taps: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Taps to keep (default: all).")] = None,
    plant: Annotated[
        list[str] | None,
        typer.Option(help="Plant a fault in labkit's engine: NAME or NAME:BLOCK; `labkit faults --list` names them."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or float64.")] = "float32",
    device: Annotated[str, typer.Option(help="Where it runs: cpu, cuda or mps.")] = "cpu",
    steps: Annotated[int, typer.Option(help="Greedy decode steps with the KV cache after the prompt.")] = 0,
    from_dumps: Annotated[
        Path | None,
        typer.Option("--from-dumps", metavar="MAP.json", help="Gather .npy and raw dumps instead of running."),
    ] = None,
) -> int:
    """Run a checkpoint and write every stage to a trace file."""
    rows = rows_of(prompt, ids)
    if from_dumps is not None and (folder or prompt or ids or taps or plant or steps):
        raise ArgumentError("dumps bring their own prompt and taps", fix="give --from-dumps and -o alone")
    with progress() as say:
        say("running the prompt")
        from labkit.verification.trace import write_trace

        if from_dumps is not None:
            from labkit.verification.trace_import import read_dumps

            recorded = read_dumps(from_dumps)
        else:
            from labkit.verification.trace_record import record_trace

            check_faults(plant)
            recorded = record_trace(
                folder,
                engine=engine,
                prompts=prompt,
                ids=rows,
                taps=taps or "all",
                plant=plant or (),
                dtype=dtype,
                device=device,
                steps=steps,
            )
        say("writing the trace")
        write_trace(output, recorded.tensors, recorded.metadata)
    _tell(f"{output}: {counted(len(recorded.tensors), 'tensor')} from {recorded.metadata.engine}", recorded.notes)
    return 0


def lint(file: Annotated[Path, typer.Argument(help="A trace file.")], *, model: Model = None, json: Json = None) -> int:
    """Say what is wrong with a trace file: exit 0 clean, 1 defects, 2 unusable."""
    with progress() as say:
        say("reading the trace")
        from labkit.report.trace import lint_json, render_lint
        from labkit.verification.lint import lint_trace

        report = lint_trace(file, model)
    if json is not None:
        write_json(lint_json(report), json)
    if json != "-":
        show(render_lint(report))
    return report.return_code


def compare(
    actual: Annotated[Path, typer.Argument(help="The trace in question.")],
    expected: Annotated[Path, typer.Argument(help="The trace to hold it against.")],
    *,
    atol: Annotated[float | None, typer.Option(help="The largest absolute error that counts as equal.")] = None,
    model: Model = None,
    ulps: Annotated[bool, typer.Option("--ulps", help="Count errors in ULPs by dtype and binade.")] = False,
    json: Json = None,
) -> int:
    """Compare two trace files tensor by tensor: exit 0 same, 1 differs, 2 cannot tell."""
    with progress() as say:
        say("comparing")
        from labkit.report.trace import comparison_json, render_comparison
        from labkit.verification.compare_traces import compare_traces

        result = compare_traces(actual, expected, atol=atol, folder=model, ulps="on" if ulps else "off", progress=say)
    if json is not None:
        write_json(comparison_json(result), json)
    if json != "-":
        show(render_comparison(result))
    return result.return_code


def golden(
    folder: Folder = None,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The safetensors file to write.")],
    prompt: Texts = None,
    ids: Rows = None,
    taps: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Stages to keep (default: all).")] = None,
    dtype: Annotated[str, typer.Option(help="What your engine computes in.")] = "float32",
) -> int:
    """Write inputs, right outputs and tolerances of every operation, for unit tests."""
    rows = rows_of(prompt, ids)
    with progress() as say:
        say("running the prompt")
        from labkit.storage import save_safetensors
        from labkit.verification.golden import golden as made_of

        made = made_of(folder, prompts=prompt, ids=rows, taps=taps or "all", dtype=dtype)
        say("writing the file")
        save_safetensors(dict(made.tensors), output, metadata=dict(made.metadata), shared="copy")
    _tell(f"{output}: {made}", made.notes)
    return 0


def _tell(written: str, notes: Sequence[str]) -> None:
    for line in (written, *(f"note: {note}" for note in notes)):
        typer.echo(safe(line))
