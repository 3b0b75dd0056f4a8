"""``labkit invariants``: properties that a GPT-2 must have whatever its weights, without a reference."""

from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.console import progress, show, tell, write_json
from labkit.cli.faults import check_faults
from labkit.cli.prompts import Folder, rows_of
from labkit.errors import ArgumentError


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command()(invariants)


def invariants(
    folder: Folder = None,
    *,
    prompt: Annotated[list[str] | None, typer.Option(help="A text to run; may be given several times.")] = None,
    ids: Annotated[list[str] | None, typer.Option(help="Token ids to run, as 1,2,3; several times.")] = None,
    plant: Annotated[
        list[str] | None,
        typer.Option(
            help="Plant a fault in labkit's model: NAME or NAME:BLOCK; `labkit faults --list` names them. "
            "May be given several times."
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or float64.")] = "float32",
    device: Annotated[str, typer.Option(help="Where labkit's model runs: cpu, cuda or mps.")] = "cpu",
    trace: Annotated[Path | None, typer.Option(help="Ask this trace file of any engine instead.")] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write JSON to a file; - is standard output.")
    ] = None,
) -> int:
    """Causality, prefix, KV cache, batch, padding, pattern rows, token 0, tied logits: exit 0 hold, 1 broken."""
    rows = rows_of(prompt, ids)
    if trace is not None and (prompt or ids or plant):
        raise ArgumentError("a trace brings its own prompt and engine", fix="leave --prompt, --ids and --plant out")
    with progress() as say:
        from labkit.load import embedded, load_gpt2
        from labkit.report.invariants import invariants_json, render_invariants
        from labkit.verification.faults import plant_all
        from labkit.verification.invariants import check_model, check_trace, return_code
        from labkit.verification.precision import dtype_named
        from labkit.verification.prompts import check_room, choose_prompts
        from labkit.verification.trace import open_trace

        place = embedded() if folder is None else folder
        say("loading the checkpoint")
        if trace is not None:
            with open_trace(trace) as opened:
                model = load_gpt2(place, dtype=opened.metadata.precision.compute)
                say("reading the trace")
                engine, results = opened.metadata.engine, check_trace(opened, model)
        else:
            model = load_gpt2(place, dtype=dtype_named(dtype), device=device)
            chosen, notes = choose_prompts(place, model.config, prompt, rows)
            tell(notes)
            check_room(chosen, model.config)
            tested, engine = model, "labkit"
            if plant:
                check_faults(plant)
                tested, engine = plant_all(model, plant), f"labkit with {', '.join(plant)} planted"
            say("running it again and again")
            results = check_model(tested, reference=model, ids=[each.ids for each in chosen])
    if json is not None:
        write_json(invariants_json(engine, results, planted=plant or ()), json)
    if json != "-":
        show(render_invariants(engine, results, planted=plant or ()))
    return return_code(results)
