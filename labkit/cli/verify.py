"""``labkit verify``: one checkpoint, labkit and transformers side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labkit.cli.console import progress, show, show_record, write_json, write_text
from labkit.cli.faults import check_faults
from labkit.cli.prompts import EMBEDDED_HELP, Folder, rows_of
from labkit.errors import ArgumentError, LabkitError
from labkit.outside import safe

if TYPE_CHECKING:
    from labkit.verification.links import Link
    from labkit.verification.report import Report


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    columns = "What the columns mean and how a verdict is reached: docs/verification.md."
    app.command(epilog=f"{EMBEDDED_HELP} {columns}")(verify)


def verify(
    folder: Folder = None,
    *,
    prompt: Annotated[list[str] | None, typer.Option(help="A text to run; may be given several times.")] = None,
    ids: Annotated[
        list[str] | None, typer.Option(help="Token ids to run, as 1,2,3; may be given several times.")
    ] = None,
    plant: Annotated[
        list[str] | None,
        typer.Option(
            help="Plant a fault in labkit's side: NAME or NAME:BLOCK; `labkit faults --list` names them. "
            "May be given several times."
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or float64.")] = "float32",
    device: Annotated[str, typer.Option(help="Where labkit's side runs: cpu, cuda or mps.")] = "cpu",
    tokens: Annotated[int, typer.Option(help="Greedy tokens to compare after each prompt.")] = 20,
    trace: Annotated[
        Path | None, typer.Option(help="Judge this trace file of any engine instead of running labkit's.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="Write what was verified, and what it does not show, to this file.")
    ] = None,
    recheck: Annotated[
        Path | None, typer.Option(help="Run this certificate again and say whether all is as it was.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as one offline page to this file.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write JUnit XML, a test a stage, for a build server.")
    ] = None,
    json: Annotated[
        str | None, typer.Option(help="Write the report as JSON to this file (- for standard output).")
    ] = None,
) -> int:
    """Compare labkit with transformers stage by stage: exit 0 same, 1 differs, 2 cannot tell."""
    rows = rows_of(prompt, ids)
    if trace is not None and (prompt or ids or plant):
        raise ArgumentError("a trace brings its own prompt and engine", fix="leave --prompt, --ids and --plant out")
    if recheck is not None:
        changed = (dtype, device, tokens) != ("float32", "cpu", 20)
        if prompt or ids or plant or certificate or html or junit or json or changed:
            raise ArgumentError("a certificate says itself what is run", fix="give --recheck FILE with --trace at most")
        return _recheck(recheck, folder, trace)
    with progress() as say:
        from labkit.report.links import chain_json, render_chain
        from labkit.report.verify import render_verification, verification_json
        from labkit.verification import verify as run
        from labkit.verification.links import first_broken, whole_chain
        from labkit.verification.verify_trace import verify_trace

        check_faults(plant)
        try:
            if trace is not None:
                report = verify_trace(trace, folder, progress=say)
            else:
                report = run(
                    folder,
                    prompts=prompt,
                    ids=rows,
                    plant=plant,
                    dtype=dtype,
                    device=device,
                    tokens=tokens,
                    progress=say,
                )
        except LabkitError:
            _tell_broken(folder)
            raise
        shortest: dict[str, str | None] = {}
        if certificate is not None or html is not None:
            say("looking for prompts that would show what these could not")
            shortest = _certify(report, folder, certificate)
        say("the checkpoint's files, from bytes to ids")
        links = whole_chain(report, folder)
        stages = None if trace is None else _stage_count(folder)
    if html is not None:
        _write_page(html, report, links, shortest, folder)
    if junit is not None:
        from labkit.report.junit import verification_junit

        write_text(verification_junit(report, links), junit)
    if json is not None:
        write_json({**verification_json(report, stage_count=stages), "chain": chain_json(links)}, json)
    if json != "-":
        show(render_chain(links), render_verification(report, stage_count=stages))
    return max(report.return_code, 1) if first_broken(links) else report.return_code


def _stage_count(folder: Path | None) -> int:
    """How many stages the folder's model has, of which a trace may have recorded a few."""
    from labkit.checkpoint.inventory import take_inventory
    from labkit.load import embedded
    from labkit.model import tap_names

    return len(tap_names(take_inventory(folder or embedded()).config))


def _certify(report: "Report", folder: Path | None, target: Path | None) -> dict[str, str | None]:
    """Write the certificate where one is wanted; the shortest prompt for each mistake that could not have shown everywhere."""
    from labkit.load import embedded
    from labkit.verification.certificate import certify, shortest_prompts

    place = folder or embedded()
    if target is None:
        return shortest_prompts(place, report.coverage, report.precision) if report.coverage else {}
    certificate = certify(report, place)
    write_json(certificate, str(target))
    coverage = certificate["coverage"]
    shortest: dict[str, str | None] = {name: each["shortest_prompt"] for name, each in coverage["partly"].items()}
    shortest.update(coverage["unseen"])
    return shortest


def _write_page(
    path: Path, report: "Report", links: "tuple[Link, ...]", shortest: dict[str, str | None], folder: Path | None
) -> None:
    from labkit.load import embedded
    from labkit.report.html import verification_page
    from labkit.verification.tensor_places import tensor_places

    names = [name for finding in report.findings for name in finding.tensors]
    places = tensor_places(folder or embedded(), names)
    write_text(verification_page(report, links=links, places=places, shortest=shortest, folder=folder), path)


def _tell_broken(folder: Path | None) -> None:
    """On standard error: the chain as far as the folder by itself goes, where one of its links is broken."""
    if folder is None or not folder.is_dir():
        return
    from labkit.report.links import chain_line
    from labkit.verification.links import check_links, first_broken

    links = check_links(folder)
    if first_broken(links) is not None:
        typer.echo(f"chain: {safe(chain_line(links))}", err=True)


def _recheck(path: Path, folder: Path | None, trace: Path | None) -> int:
    with progress() as say:
        from labkit.verification.certificate import recheck

        result = recheck(path, folder, trace=trace, progress=say)
    show_record(result)
    return result.return_code
